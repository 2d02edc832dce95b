"""The records of steps: losses are read when that costs least, checked, and written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from .metrics_log import MetricsLog
from .nonfinite import nonfinite_error

# Reading a loss waits for the device, so on a GPU several are read at once.
_MOST_UNREAD = 10


class StepRecords:
    """Writes one record per step, in order.

    Args:
        log: Where they go.
        device: Where losses are computed.
        run_dir: Named in errors.
    """

    def __init__(self, log: MetricsLog, device: torch.device, run_dir: Path) -> None:
        self._log, self._run_dir = log, run_dir
        self._most_unread = 1 if device.type == "cpu" else _MOST_UNREAD
        self._unread: list[tuple[dict[str, Any], torch.Tensor, torch.Tensor | None]] = []

    def add(self, record: dict[str, Any], loss: torch.Tensor, norm: torch.Tensor | None) -> None:
        """Take in a step.

        Args:
            record: ``step``, and what is known of it already.
            loss: Its loss, on the device.
            norm: Its gradient norm before clipping, None if it isn't clipped.

        Raises:
            NonFiniteLossError: a loss or norm that was read isn't finite.
        """
        self._unread.append((record, loss, norm))
        if len(self._unread) >= self._most_unread:
            self.read()

    def add_skip(self, step: int, in_a_row: int) -> None:
        """Take in a step that was left out after ``step``."""
        self.read()
        self._log.write({"step": step, "skipped": in_a_row})

    def read(self) -> None:
        """Read what was added, check and write it.

        Raises:
            NonFiniteLossError: one of them isn't finite.
        """
        unread, self._unread = self._unread, []
        for record, loss, norm in unread:
            values = {"loss": float(loss)} | ({"grad_norm": float(norm)} if norm is not None else {})
            for name, value in values.items():
                if not math.isfinite(value):
                    what = name.replace("grad_", "gradient ")
                    raise nonfinite_error(f"The {what} is {value} at step {record['step']}", self._run_dir)
            self._log.write(record | values)
