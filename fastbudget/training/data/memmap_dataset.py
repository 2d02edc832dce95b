"""Fixed-size records in a binary file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ...core.errors import DataFileError, InvalidInputError


class MemmapDataset(Dataset[torch.Tensor]):
    """Records of one shape and type, one after the other, as ``numpy.ndarray.tofile`` writes them.

    Nothing is loaded before it is asked for, and the system's page cache keeps what fits. Records are read, not
    mapped: a mapped file that shrinks would kill the process with SIGBUS; here it raises. Can be pickled, forked and
    shared by threads.

    Args:
        path: The file.
        dtype: Of the numbers: any of numpy's fixed-size types that torch has.
        shape: Of one record; ``()`` for single numbers.
        offset_bytes: Header to skip.

    Raises:
        InvalidInputError: the file isn't a whole number of records, or has none.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, dtype: str | np.dtype[Any] | type, shape: Sequence[int] | int,
        offset_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.path, self.offset_bytes = Path(path), offset_bytes
        self.dtype = np.dtype(dtype)
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        try:
            torch.from_numpy(np.empty(0, self.dtype))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"dtype {self.dtype} has no tensor: {error}.") from None
        if any(size < 1 for size in self.shape):
            raise InvalidInputError(f"shape must hold positive sizes, got {self.shape}.")
        self.record_bytes = prod(self.shape) * self.dtype.itemsize
        self._num_records = whole_items(self.path, self.record_bytes, offset_bytes, f"records of {self.record_bytes}")
        self._descriptor: int | None = None

    def __len__(self) -> int:
        return self._num_records

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return record ``index``; a tensor of ``shape``."""
        record = np.empty(self.shape, self.dtype)
        self._read(range(len(self))[index], record)
        return torch.from_numpy(record)

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Return several records at once, as views of one tensor; DataLoader calls this."""
        records = np.empty((len(indices), *self.shape), self.dtype)
        for place, index in enumerate(indices):
            self._read(range(len(self))[index], records[place, ...])
        return list(torch.from_numpy(records))

    def _read(self, index: int, record: np.ndarray[Any, Any]) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        at = self.offset_bytes + index * self.record_bytes
        view, done = record.reshape(-1).view(np.uint8).data, 0
        while done < self.record_bytes:
            got = os.preadv(self._descriptor, [view[done:]], at + done)
            if got == 0:
                raise DataFileError(
                    f"{self.path} has only {os.fstat(self._descriptor).st_size} bytes left and was read at "
                    f"{at + done}: it was truncated after it was opened."
                )
            done += got

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_descriptor": None}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]


def whole_items(path: Path, item_bytes: int, offset_bytes: int, items: str) -> int:
    """Return how many items a file holds after its header.

    Raises:
        InvalidInputError: none, or not a whole number.
    """
    size = path.stat().st_size - offset_bytes
    if offset_bytes < 0 or size <= 0:
        raise InvalidInputError(
            f"{path} has {path.stat().st_size} bytes, none after offset_bytes={offset_bytes}; check the file and the "
            "offset."
        )
    if size % item_bytes:
        raise InvalidInputError(
            f"{path} has {size} bytes after its first {offset_bytes}, which is not a multiple of {items} bytes; check "
            "dtype, or whether the file was written to its end."
        )
    return size // item_bytes
