"""The records of steps: losses are read when that costs least, checked, and written a few times a second."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from .metrics_log import MetricsLog
from .nonfinite import nonfinite_error

# Reading a loss waits for the device, so on a GPU several are read at once.
_MOST_UNREAD = 10


class StepRecords:
    """Keeps one record per step, in order, until `write`.

    Args:
        log: Where they go.
        device: Where losses are computed.
        run_dir: Named in errors.
    """

    def __init__(self, log: MetricsLog, device: torch.device, run_dir: Path) -> None:
        self._log, self._run_dir = log, run_dir
        self._reads_at_once = device.type == "cpu"
        self._unread: list[tuple[int, float, torch.Tensor, torch.Tensor | None]] = []
        self._read: list[tuple[int, float, float, float | None]] = []

    def add(self, step: int, rate: float, loss: torch.Tensor, norm: torch.Tensor | None) -> None:
        """Take in a step.

        Args:
            step: Its number.
            rate: The learning rate of its first parameter group.
            loss: Its loss, on the device.
            norm: Its gradient norm before clipping, None if it isn't clipped.

        Raises:
            NonFiniteLossError: a loss or norm that was read isn't finite.
        """
        if self._reads_at_once:
            value = loss.item()
            if norm is None and math.isfinite(value) and not self._log.sinks:
                self._read.append((step, rate, value, None))
            else:
                self._take(step, rate, value, None if norm is None else norm.item())
            return
        self._unread.append((step, rate, loss, norm))
        if len(self._unread) >= _MOST_UNREAD:
            self.read()

    def add_skip(self, step: int, in_a_row: int) -> None:
        """Take in a step that was left out after ``step``."""
        self.write()
        self._log.write({"step": step, "skipped": in_a_row})

    def read(self) -> None:
        """Read the losses that were added and check them.

        Raises:
            NonFiniteLossError: one of them isn't finite.
        """
        unread, self._unread = self._unread, []
        if not unread:
            return
        losses = torch.stack([loss.float().reshape(()) for _, _, loss, _ in unread]).tolist()  # one transfer
        for (step, rate, _, norm), loss in zip(unread, losses, strict=True):
            self._take(step, rate, loss, None if norm is None else float(norm))

    def _take(self, step: int, rate: float, loss: float, norm: float | None) -> None:
        if not math.isfinite(loss):
            raise nonfinite_error(f"The loss is {loss} at step {step}", self._run_dir)
        if norm is not None and not math.isfinite(norm):
            raise nonfinite_error(f"The gradient norm is {norm} at step {step}", self._run_dir)
        self._read.append((step, rate, loss, norm))
        if self._log.sinks:
            self._log.give({"step": step, "lr": rate, "loss": loss} | ({} if norm is None else {"grad_norm": norm}))

    def write(self) -> None:
        """Read and write all that was added.

        Raises:
            NonFiniteLossError: see `read`.
        """
        self.read()
        self.write_read()

    def write_read(self) -> None:
        """Write what was read; all that can be done once training has failed."""
        read, self._read = self._read, []
        if read:
            self._log.write_steps(read)
