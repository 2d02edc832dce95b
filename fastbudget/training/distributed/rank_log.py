"""The metrics log of a rank that isn't the first: rank 0 writes for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..metrics_log import MetricsLog, Sink


class RankLog(MetricsLog):
    """Takes the same calls as rank 0's log and writes nothing."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir
        self.sinks: list[Sink] = []

    def write(self, record: dict[str, Any]) -> None:
        """Drop the record."""

    def write_steps(self, steps: Sequence[tuple[int, float, float, float | None]]) -> None:
        """Drop the records."""

    def go_back_to(self, step: int) -> None:
        """Leave the file to rank 0."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
