"""Saving beside training: a snapshot in memory of its own, and a thread that writes it.

A thread, not a process. Its work is hashing, writing and syncing, all of which release the interpreter lock, so it
hardly slows training down (bench/reliability/save_speed.py compares both). It dies with the trainer, so that no writer
is left behind; it needs no shared memory, works whatever the start method, and its errors are the caller's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

_ALIGNMENT = 64
_log = logging.getLogger("fastbudget")


class SaveHandle:
    """A save under way. The interpreter finishes it before it exits, unless it is killed."""

    def __init__(self, result: Future[Path]) -> None:
        self._result = result
        self._told = False

    @property
    def done(self) -> bool:
        """Whether the save has ended, durably or with an error."""
        return self._result.done()

    def wait(self, timeout_s: float | None = None) -> Path:
        """Return the checkpoint's directory once it is durable.

        Raises:
            SaveError: it could not be saved; what was saved before is intact.
            TimeoutError: it is still under way after ``timeout_s`` seconds.
        """
        error = self._result.exception(timeout_s)
        self._told = True
        if error is not None:
            raise error
        return self._result.result()

    def settle(self) -> None:
        """Wait, and raise the error if `wait` never did."""
        if not self._told:
            self.wait()


class BackgroundWriter:
    """A thread that writes one save at a time. It is kept: to wait until a new one starts would add to the stall."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fastbudget-save")

    @property
    def is_here(self) -> bool:
        """Whether this process writes: a fork of it has the object, but not the thread."""
        return self._pid == os.getpid()

    def start(self, work: Callable[[], Path]) -> SaveHandle:
        """Begin to do the work, which returns the path that it saved to."""
        return SaveHandle(self._pool.submit(_logged, work))


def _logged(work: Callable[[], Path]) -> Path:
    try:
        return work()
    except BaseException as error:
        # At once, because nobody may ever ask.
        _log.error("A checkpoint could not be saved in the background: %s", error)
        raise


class Staging:
    """Host memory that snapshots are copied to. It is kept and reused: new memory costs more than the copy itself."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._layout: list[tuple[str, torch.dtype, torch.Size]] = []
        self._copies: list[torch.Tensor] = []

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return copies that stay valid until the next call. Those of GPU tensors lie in pinned memory."""
        devices = {tensor.device for tensor in tensors.values() if tensor.is_cuda}
        layout = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
        if layout != self._layout or (devices and not self._memory.is_pinned()):
            self._lay_out(tensors, pinned=bool(devices))
            self._layout = layout
        for copy, tensor in zip(self._copies, tensors.values(), strict=True):
            copy.copy_(tensor, non_blocking=tensor.is_cuda)
        for device in devices:
            torch.cuda.synchronize(device)
        return dict(zip(tensors, self._copies, strict=True))

    def _lay_out(self, tensors: Mapping[str, torch.Tensor], *, pinned: bool) -> None:
        self._copies, self._layout = [], []
        places, size = [], 0
        for tensor in tensors.values():
            places.append(size)
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        if size > len(self._memory) or (pinned and not self._memory.is_pinned()):
            self._memory = torch.empty(0, dtype=torch.uint8)  # freed before the larger one is taken
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        for place, tensor in zip(places, tensors.values(), strict=True):
            self._copies.append(self._memory[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
