"""Tensors for micro-benchmarks, cut from a few buffers: thousands of benchmarks, one allocation each."""

from __future__ import annotations

import math

import torch


class TensorPool:
    """Hands out tensors of values between 0.5 and 1.5, for which every measured operation is well defined.

    Tensors of different slots never share memory; two of the same slot do.

    Args:
        device: where the tensors are.
        most_bytes: of one tensor.
    """

    SLOTS = 4

    def __init__(self, device: torch.device, most_bytes: int) -> None:
        self._device = device
        self._most_bytes = most_bytes
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def tensor(self, slot: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous tensor of that shape."""
        assert 0 <= slot < self.SLOTS
        elements = math.prod(shape)
        buffer = self._buffers.get((slot, dtype))
        if buffer is None or buffer.numel() < elements:
            room = min(2 * elements, self._most_bytes // dtype.itemsize)
            buffer = torch.rand(max(elements, room), device=self._device).add_(0.5).to(dtype)
            self._buffers[slot, dtype] = buffer
        return buffer[:elements].view(shape)
