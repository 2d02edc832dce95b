"""Activations by example, in memory or in a memory-mapped file, up to a size limit."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..core.errors import InvalidInputError

Bytes = npt.NDArray[np.uint8]

_FIRST_ROWS = 1024


@dataclass(frozen=True)
class TensorLayout:
    """What makes a tensor of one batch out of bytes: dtype, device, shape, and the order of its dimensions in memory.

    The order matters: kernels choose their way, and so their rounding, by it (channels last, say).
    """

    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        """Return the layout of a tensor."""
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))
        return cls(tensor.dtype, tensor.device, tuple(tensor.shape), tuple(order))

    def arranged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor with its dimensions in this order in memory."""
        if self.order == tuple(range(len(self.order))):
            return tensor
        inverse = [self.order.index(dim) for dim in range(len(self.order))]
        return tensor.permute(self.order).contiguous().permute(inverse)

    @property
    def row_bytes(self) -> int:
        """Bytes per example."""
        count = 1
        for size in self.shape[1:]:
            count *= size
        return count * self.dtype.itemsize


class ActivationCache:
    """Rows of bytes by key, for one prefix at a time: those of another are dropped when a new one begins.

    Args:
        max_bytes: What the activations may take. Examples beyond it are computed anew each time.
        directory: Where a memory-mapped file holds them, removed at the end; None: memory.
    """

    def __init__(self, max_bytes: int = 2**30, directory: str | Path | None = None) -> None:
        if max_bytes < 1:
            raise InvalidInputError(f"max_bytes must be at least 1, got {max_bytes}.")
        self.max_bytes = max_bytes
        self._directory = None if directory is None else Path(directory)
        self._prefix: bytes | None = None
        self._rows: Bytes = np.empty((0, 0), np.uint8)
        self._index: dict[bytes, int] = {}
        self._file: Any = None
        self.hits = self.misses = self.left_out = 0

    def __len__(self) -> int:
        return len(self._index)

    @property
    def bytes_used(self) -> int:
        """Bytes of the rows held."""
        return len(self._index) * self._rows.shape[1]

    def begin(self, prefix: bytes) -> None:
        """Serve this prefix from now on; activations of another one are dropped."""
        if prefix != self._prefix:
            self.clear()
            self._prefix = prefix

    def clear(self) -> None:
        """Drop everything, and the file."""
        self._prefix, self._index = None, {}
        self._rows = np.empty((0, 0), np.uint8)
        if self._file is not None:
            self._file.close()
            self._file = None

    def get(self, keys: list[bytes]) -> Bytes | None:
        """Return uint8 [len(keys), row_bytes], or None unless all are there."""
        found = [self._index.get(key, -1) for key in keys]
        if min(found, default=-1) < 0:
            self.misses += len(keys)
            return None
        self.hits += len(keys)
        return np.asarray(self._rows[found])

    def put(self, keys: list[bytes], rows: Bytes) -> None:
        """Keep uint8 [len(keys), row_bytes] if the limit allows it for all: a batch is served whole or not at all."""
        new = [index for index, key in enumerate(keys) if key not in self._index]
        if (len(self._index) + len(new)) * rows.shape[1] > self.max_bytes:
            self.left_out += len(new)
            return
        if not new:
            return
        start, end = len(self._index), len(self._index) + len(new)
        if end > len(self._rows):
            self._grow(end, rows.shape[1])
        self._rows[start:end] = rows[new]
        self._index |= {keys[index]: start + place for place, index in enumerate(new)}

    def _grow(self, needed: int, row_bytes: int) -> None:
        most = max(needed, self.max_bytes // max(1, row_bytes))
        capacity = min(most, max(needed, 2 * len(self._rows), _FIRST_ROWS))
        if self._directory is None:
            grown = np.empty((capacity, row_bytes), np.uint8)
            grown[: len(self._index)] = self._rows[: len(self._index)].reshape(-1, row_bytes)
            self._rows = grown
            return
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._directory, prefix="activations-")  # noqa: SIM115
        if isinstance(self._rows, np.memmap):
            self._rows.flush()
        self._file.truncate(capacity * row_bytes)
        self._rows = np.memmap(self._file, np.uint8, "r+", shape=(capacity, row_bytes))
