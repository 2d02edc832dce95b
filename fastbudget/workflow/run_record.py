"""A run's record on disk: ``run.json``, rewritten whole after each stage, and all a report needs besides the logs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..core.durable_files import write_json
from ..core.errors import RunDirectoryError

RUN_FILE = "run.json"
_FORMAT = "fastbudget-run"
_VERSION = 1


@dataclass(kw_only=True)
class RunRecord:
    """What a run did. A stage not reached yet is None.

    ``source`` is the configuration file. ``plan``, ``train``, ``evaluate`` and ``export`` are plain data; ``report``
    is a path.
    """

    name: str
    run_dir: str
    source: str
    started_at: str
    configuration: dict[str, Any]
    environment: dict[str, Any]
    plan: dict[str, Any] | None = None
    train: dict[str, Any] | None = None
    evaluate: dict[str, Any] | None = None
    export: dict[str, Any] | None = None
    report: str | None = None
    messages: list[str] = field(default_factory=list)

    def save(self) -> None:
        """Write the record durably."""
        write_json(Path(self.run_dir) / RUN_FILE, {"format": _FORMAT, "version": _VERSION, **asdict(self)})

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return asdict(self)


def read_run_record(run_dir: Path) -> RunRecord:
    """Read a run's record.

    Raises:
        RunDirectoryError: there is none, or it can't be read.
    """
    path = run_dir / RUN_FILE
    try:
        document = json.loads(path.read_bytes())
        if document.pop("format") != _FORMAT or document.pop("version") != _VERSION:
            raise ValueError("another format or version")
        return RunRecord(**document)
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{run_dir} holds no run: {RUN_FILE} is missing.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{path} can't be read: {error}.") from error
