"""Weights & Biases as a sink of `fastbudget.Trainer`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ..core.errors import MissingExtraError
from .background_sink import BackgroundSink


class WandbSink(BackgroundSink):
    """Logs the numbers of each record to one W&B run. Close it, or use it in a ``with`` block.

    Args:
        project: name of the project.
        mode: ``"offline"`` writes to disk only, for a later ``wandb sync``.
        name: of the run; None: W&B makes one up.
        config: settings shown with the run.
        directory: where W&B keeps its files; None: ``wandb/`` in the current one.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(
        self,
        project: str,
        *,
        mode: Literal["online", "offline"] = "online",
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        if find_spec("wandb") is None:
            raise MissingExtraError("WandbSink needs wandb: `pip install 'fastbudget[wandb]'`.")
        options = {"project": project, "mode": mode, "name": name, "config": dict(config or {}), "dir": directory}
        # Finishing an online run waits for its uploads.
        super().__init__(partial(_WandbRun, options), name="W&B", close_timeout_s=60.0)


class _WandbRun:
    def __init__(self, options: dict[str, Any]) -> None:
        import wandb

        self._run = wandb.init(**options, settings=wandb.Settings(silent=True))

    def write(self, step: int, values: dict[str, float]) -> None:
        # Records of one step come as several: W&B joins what has the same step.
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()
