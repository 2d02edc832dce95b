"""The run's records: one JSON line each, and the sinks that get them too."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.durable_files import write_durably

METRICS_FILE = "metrics.jsonl"

Sink = Callable[[dict[str, Any]], None]


class MetricsLog:
    """Appends records to ``metrics.jsonl`` and gives them to sinks; a sink that raises is dropped with a warning."""

    def __init__(self, run_dir: Path, sinks: Sequence[Sink]) -> None:
        self._path = run_dir / METRICS_FILE
        self.sinks = list(sinks)
        self._file = self._path.open("a")

    def write(self, record: dict[str, Any]) -> None:
        """Record one line; ``step`` is its place in the run."""
        # JSON has no NaN; a metric that isn't a number is null.
        metrics = {name: value if math.isfinite(value) else None for name, value in record.get("metrics", {}).items()}
        self._file.write(json.dumps(record | {"metrics": metrics} if metrics else record) + "\n")
        self.give(record)

    def write_steps(self, steps: Sequence[tuple[int, float, float, float | None]]) -> None:
        """Record step, learning rate, loss and gradient norm (None: not clipped) of several steps; all are finite.

        Sinks got them before, by `give`: they are told of a step at once.
        """
        # The shortest text of a finite float is a JSON number.
        self._file.write(
            "".join(
                f'{{"step": {step}, "lr": {rate!r}, "loss": {loss!r}}}\n'
                if norm is None
                else f'{{"step": {step}, "lr": {rate!r}, "loss": {loss!r}, "grad_norm": {norm!r}}}\n'
                for step, rate, loss, norm in steps
            )
        )

    def give(self, record: dict[str, Any]) -> None:
        """Give a record to the sinks alone."""
        for sink in list(self.sinks):
            try:
                sink(record)
            except Exception as error:
                self.sinks.remove(sink)
                warnings.warn(f"A sink was dropped: it raised {error!r}.", RuntimeWarning, stacklevel=2)

    def go_back_to(self, step: int) -> None:
        """Drop the records of later steps: a resumed run takes those steps again, and its history has each once."""
        self._file.close()
        lines = self._path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _is_until(line, step)]
        if kept != lines:
            write_durably(self._path, b"".join(kept))
        self._file = self._path.open("a")

    def flush(self) -> None:
        """Hand what was recorded to the system, so that it survives this process."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_until(line: bytes, step: int) -> bool:
    try:
        return line.endswith(b"\n") and json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError):
        return False  # cut off by a crash
