"""Tensors for micro-benchmarks, cut from a few buffers: thousands of benchmarks, one allocation each."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch


class TensorPool:
    """Hands out tensors of values between 0.5 and 1.5, for which every measured operation is well defined.

    Tensors of different slots never share memory. Those of one slot follow each other through its buffer, so that
    a benchmark that asks several times gets memory that is not in the nearest cache, as a step does.

    Args:
        device: where the tensors are.
        slot_bytes: of a slot's buffer.
    """

    SLOTS = 4

    def __init__(self, device: torch.device, slot_bytes: int) -> None:
        self.device = device
        self.recent: deque[Any] = deque(maxlen=8)
        self._slot_bytes = slot_bytes
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._used: dict[tuple[int, torch.dtype], int] = {}

    def tensor(self, slot: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous tensor of that shape, at most as large as a slot."""
        assert 0 <= slot < self.SLOTS
        key, elements = (slot, dtype), math.prod(shape)
        if key not in self._buffers:
            block = torch.rand(2**18, device=self.device).add_(0.5).to(dtype)
            self._buffers[key] = block.repeat(self._slot_bytes // dtype.itemsize // len(block))
        buffer = self._buffers[key]
        begin = self._used.get(key, 0)
        if begin + elements > len(buffer):
            begin = 0
        self._used[key] = begin + elements
        return buffer[begin : begin + elements].view(shape)

    def keep(self, result: Any) -> None:
        """Hold a result for a while, so that the next one gets other memory."""
        self.recent.append(result)

    def release(self) -> None:
        """Let go of the results held."""
        self.recent.clear()
