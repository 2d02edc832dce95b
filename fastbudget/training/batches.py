"""Batches as loaders yield them: moved, counted, and given to the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..core.errors import InvalidInputError


def inputs_of(batch: Any) -> Any:
    """Return the model's part of a batch: a mapping whole, the first of a pair, else the batch itself."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0]
    return batch


def call_model(model: torch.nn.Module, batch: Any) -> Any:
    """Call the model on a batch: a mapping becomes keywords, a tuple of inputs positions, a tensor the one argument."""
    kind = type(batch)
    inputs = batch if kind is dict or kind is torch.Tensor else inputs_of(batch)
    if isinstance(inputs, torch.Tensor):
        return model(inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, list | tuple):
        return model(*inputs)
    return model(inputs)


def move(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on ``device``."""
    # What batches mostly are is walked through here: for a batch of two tensors tree_map takes ten times as long.
    kind = type(batch)
    if kind is tuple or kind is list:
        return kind([move(value, device) for value in batch])
    if kind is dict:
        return {name: move(value, device) for name, value in batch.items()}
    if isinstance(batch, torch.Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping) and hasattr(batch, "to"):  # transformers' BatchEncoding
        return batch.to(device)
    return tree_map(
        lambda value: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value, batch
    )


def first_tensor(batch: Any) -> torch.Tensor | None:
    """Return a batch's first tensor with a batch dimension, None if it has none."""
    first = batch
    while type(first) is tuple or type(first) is list or type(first) is dict:
        if not first:
            break
        first = next(iter(first.values())) if type(first) is dict else first[0]
    if isinstance(first, torch.Tensor) and first.ndim:
        return first
    return next((leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.ndim), None)


def leaves(batch: Any) -> list[Any]:
    """Return what a nested batch holds."""
    return tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch)


def num_samples(batch: Any) -> int:
    """Return the length of a batch's first tensor along its first dimension; the weight of its mean loss."""
    first = first_tensor(batch)
    if first is not None:
        return int(first.shape[0])
    raise InvalidInputError(
        f"A batch must hold at least one tensor with a batch dimension, got {type(batch).__name__}."
    )


def check_can_start_anew(loader: Iterable[Any], name: str) -> None:
    """Raise InvalidInputError for an iterator: it has one epoch, and none after a resume."""
    if isinstance(loader, Iterator):
        raise InvalidInputError(
            f"{name} can be iterated only once (it is a {type(loader).__name__}); give a DataLoader, a list, or an "
            "object whose __iter__ starts anew."
        )


def check_has_batches(loader: Iterable[Any], name: str) -> Any:
    """Return the first batch of a loader that can be iterated again.

    Raises:
        InvalidInputError: it yields nothing, or can be iterated only once.
    """
    check_can_start_anew(loader, name)
    for batch in loader:
        return batch
    raise InvalidInputError(f"{name} yields no batch: the data set is empty, or smaller than a batch with drop_last.")


def length_of(loader: Iterable[Any]) -> int | None:
    """Return a loader's number of batches, None if it doesn't know."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader of an IterableDataset
        return None


def batches_per_epoch(loader: Any) -> int:
    """Return the number of batches in one pass.

    Raises:
        InvalidInputError: the loader doesn't know.
    """
    length = getattr(loader, "batches_per_epoch", None)
    if length is None:
        length = length_of(loader)
    if length is None:
        raise InvalidInputError(f"A {type(loader).__name__} has no length, so epochs can't be counted; use max_steps.")
    return int(length)
