"""Batches as loaders yield them: moved, counted, and given to the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..core.errors import InvalidInputError


def inputs_of(batch: Any) -> Any:
    """Return the model's part of a batch: a mapping whole, the first of a pair, else the batch itself."""
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0]
    return batch


def call_model(model: torch.nn.Module, batch: Any) -> Any:
    """Call the model on a batch: a mapping becomes keywords, a tuple of inputs positions, a tensor the one argument."""
    inputs = inputs_of(batch)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, list | tuple):
        return model(*inputs)
    return model(inputs)


def move(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on ``device``."""
    return tree_map(
        lambda value: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value, batch
    )


def num_samples(batch: Any) -> int:
    """Return the length of a batch's first tensor along its first dimension; the weight of its mean loss."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return int(leaf.shape[0])
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


class BatchStream:
    """Endless batches of a loader, epoch after epoch, with a position that can be restored.

    Before each epoch torch's global seed is set from (seed, epoch), so a shuffling DataLoader without a generator of
    its own repeats its order when training resumes.
    """

    def __init__(self, loader: Iterable[Any], *, seed: int, epoch: int = 0, skip: int = 0) -> None:
        self._loader, self._seed = loader, seed
        self.epoch, self.position = epoch, 0
        self._iterator = self._start_epoch()
        for _ in islice(self._iterator, skip):
            self.position += 1

    def _start_epoch(self) -> Iterator[Any]:
        torch.manual_seed((self._seed * 1_000_003 + self.epoch) % 2**63)
        return iter(self._loader)

    def __next__(self) -> Any:
        for _ in range(2):
            for batch in self._iterator:
                self.position += 1
                return batch
            if self.position == 0:
                break
            self.epoch, self.position = self.epoch + 1, 0
            self._iterator = self._start_epoch()
        raise InvalidInputError("train_data yields no batch.")
