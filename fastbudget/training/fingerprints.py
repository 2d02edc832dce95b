"""What training data a run saw, in a few numbers: a hash of all of it, or of a sample where it is large."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, Subset

from .batches import length_of
from .data import MemmapDataset, SeededDataset, TokenBatches, TokenDataset, TokenLoader

# Up to so many bytes are hashed whole (some 10 ms); of more, a head, a tail and evenly spaced pieces between them.
_WHOLE_BYTES = 64 * 2**20
_PIECES, _PIECE_BYTES = 64, 2**16


def data_fingerprint(data: Any) -> dict[str, Any]:
    """Describe training data so that two runs can be told apart by it.

    Args:
        data: A loader, a data set, a file's path, or a list of batches.

    Returns:
        ``kind``; ``length`` where it has one; ``hash`` (64 bits of XXH3) and ``method``: ``"content"`` if every byte
        of its file or tensors counts, ``"sampled"`` if a change may be missed, ``"own"`` if the data set gave its own
        (``fingerprint()``, or Hugging Face's ``_fingerprint``), None if nothing was hashed. Loaders add
        ``batch_size``, files and tensors ``bytes``.
    """
    described: dict[str, Any] = {"kind": type(data).__name__}
    length = length_of(data)
    if length is not None:
        described["length"] = length
    if isinstance(data, TokenLoader | TokenBatches):
        return described | {"data": data_fingerprint(data.dataset), "batch_size": data.batch_size}
    if isinstance(data, DataLoader):
        return described | {"data": data_fingerprint(data.dataset), "batch_size": _batch_size(data)}
    if isinstance(data, SeededDataset):
        return described | {"data": data_fingerprint(data.dataset)}
    if isinstance(data, Subset):
        indices = xxhash.xxh3_64(repr(list(data.indices)).encode()).hexdigest()
        return described | {"data": data_fingerprint(data.dataset), "indices": indices}
    return described | _hashed(data)


def _batch_size(loader: DataLoader[Any]) -> int | None:
    size = loader.batch_size
    return size if size is not None else getattr(loader.batch_sampler, "batch_size", None)


def _hashed(data: Any) -> dict[str, Any]:
    own = getattr(data, "fingerprint", None)
    own = own() if callable(own) else getattr(data, "_fingerprint", None)
    if isinstance(own, str):
        return {"hash": own, "method": "own"}
    if isinstance(data, MemmapDataset | TokenDataset):
        return _file_hash(data.path)
    if isinstance(data, str | os.PathLike):
        return _file_hash(Path(data))
    tensors = _tensors(data) or _own_tensors(data)
    return _tensor_hash(tensors) if tensors else {"hash": None, "method": None}


def _file_hash(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        for start, length in _pieces(size):
            file.seek(start)
            digest.update(file.read(length))
    return {"file": path.name, "bytes": size, "hash": digest.hexdigest(), "method": _method(size)}


def _tensor_hash(tensors: list[torch.Tensor]) -> dict[str, Any]:
    digest = xxhash.xxh3_64()
    total = sum(tensor.nbytes for tensor in tensors)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if total <= _WHOLE_BYTES:
        chosen: Iterable[torch.Tensor] = tensors
    else:
        step = -(-len(tensors) // _PIECES)
        chosen = (tensor.flatten()[: _PIECE_BYTES // max(1, tensor.element_size())] for tensor in tensors[::step])
    for tensor in chosen:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return {"bytes": total, "hash": digest.hexdigest(), "method": _method(total)}


def _own_tensors(dataset: Any) -> list[torch.Tensor]:
    """Return the tensors and arrays that a data set of the user's keeps in attributes."""
    values = [value for _, value in sorted(getattr(dataset, "__dict__", {}).items())]
    return [tensor for value in values for tensor in _tensors(value) or ()]


def _tensors(data: Any) -> list[torch.Tensor] | None:
    """Return the tensors of a list or tuple of batches; None if it holds anything else or is no list."""
    if isinstance(data, torch.Tensor):
        return [data] if data.layout == torch.strided else None
    if isinstance(data, np.ndarray):
        return [torch.from_numpy(np.ascontiguousarray(data).view(np.uint8))] if data.dtype != object else None
    if not isinstance(data, (list, tuple, dict)):
        return None
    found: list[torch.Tensor] = []
    for value in data.values() if isinstance(data, Mapping) else data:
        inner = _tensors(value)
        if inner is None:
            return None
        found += inner
    return found


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    if size <= _WHOLE_BYTES:
        for start in range(0, size, 2**20):
            yield start, min(2**20, size - start)
        return
    for number in range(_PIECES):
        yield (size - _PIECE_BYTES) * number // (_PIECES - 1), _PIECE_BYTES


def _method(size: int) -> str:
    return "content" if size <= _WHOLE_BYTES else "sampled"
