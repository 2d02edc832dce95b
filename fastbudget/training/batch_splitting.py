"""Batches cut into micro-batches along their first dimension."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..core.errors import InvalidInputError
from .batches import num_samples

_SHARED = (type(None), bool, int, float, complex, str, bytes)


def split_batch(batch: Any, size: int) -> list[Any]:
    """Return a batch in parts of at most ``size`` samples, as equal as can be, in order.

    Tensors and arrays are cut along dimension 0 (as views); so are lists of as many numbers or texts as there are
    samples. Numbers, texts and tensors with a first dimension of 1 or none belong to every part.

    Args:
        batch: A tensor, or mappings, lists and tuples of them, nested as they like.
        size: At least 1.

    Raises:
        InvalidInputError: a part of the batch has another number of samples, or isn't known how to be cut.
    """
    samples = num_samples(batch)
    parts = -(-samples // size)
    if parts <= 1:
        return [batch]
    bounds = [samples * index // parts for index in range(parts + 1)]
    return [_cut(batch, start, stop, samples, "the batch") for start, stop in pairwise(bounds)]


def _cut(value: Any, start: int, stop: int, samples: int, where: str) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        if value.ndim == 0 or (value.shape[0] == 1 and samples != 1):
            return value
        if value.shape[0] != samples:
            raise InvalidInputError(
                f"A batch of {samples} samples can be cut only if all its tensors have that length along dimension 0; "
                f"{where} holds one of shape {list(value.shape)}. Pad or stack it per sample (sequences packed end to "
                "end can't be cut), or lower the loader's batch size instead of micro_batch_size."
            )
        return value[start:stop]
    if isinstance(value, Mapping):
        return {key: _cut(part, start, stop, samples, f"{where}[{key!r}]") for key, part in value.items()}
    if isinstance(value, list | tuple):
        if len(value) == samples and all(isinstance(part, _SHARED) for part in value):
            return value[start:stop]
        parts = [_cut(part, start, stop, samples, f"{where}[{index}]") for index, part in enumerate(value)]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, _SHARED):
        return value
    raise InvalidInputError(
        f"A batch can't be cut into micro-batches: {where} holds a {type(value).__name__}. Use tensors, arrays, and "
        "mappings, lists or tuples of them."
    )
