"""Which part of the training data is one rank's."""

from __future__ import annotations

import logging
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Sampler

from ...core.errors import InvalidInputError
from ..batch_stream import samplers_of
from ..batches import check_has_batches, leaves, num_samples
from ..data import TokenBatches, TokenLoader
from ..data.resumable_sampler import part_size
from ..generators import sample_generators
from .data_parallel import Batches
from .rank_group import RankGroup

_log = logging.getLogger("fastbudget.training")


@dataclass(frozen=True, kw_only=True)
class RankBatches:
    """One rank's batches.

    ``is_global``: they are parts of batches that all ranks share. ``cut``: they arrive whole, and are cut when drawn.
    ``parts`` tells the size of each global batch. ``num_batches``: in an epoch, of the rank that has most; None:
    unknown.
    """

    loader: Iterable[Any]
    is_global: bool
    cut: bool = False
    parts: PartSampler | None = None
    num_batches: int | None = None


class PartSampler(Sampler[list[int]]):
    """A rank's part of each batch of another sampler; one sample, which doesn't count, where its part is empty.

    ``sizes`` are those of the whole batches, in the order of the batches drawn.
    """

    def __init__(self, batches: Any, rank: int, world_size: int) -> None:
        self.sampler = batches
        self.sizes: deque[int] = deque()
        self._rank, self._world_size = rank, world_size

    def __iter__(self) -> Iterator[list[int]]:
        sizes: deque[int] = deque()
        self.sizes = sizes  # of this epoch; a loader may read ahead
        for batch in self.sampler:
            indices = list(batch)
            sizes.append(len(indices))
            yield indices[part(len(indices), self._rank, self._world_size)] or indices[:1]

    def __len__(self) -> int:
        return len(self.sampler)


def part(size: int, rank: int, world_size: int) -> slice:
    """Return a rank's part of ``size`` samples: the parts are in the order of ranks, and differ by at most one."""
    return slice(rank * size // world_size, (rank + 1) * size // world_size)


def cut_batch(batch: Any, rank: int, world_size: int) -> Any:
    """Return a rank's part of a whole batch, along the first dimension of its tensors; None where it is empty."""
    size = num_samples(batch)
    mine = part(size, rank, world_size)
    if mine.start == mine.stop:
        return None
    return tree_map(
        lambda value: (
            value[mine] if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == size else value
        ),
        dict(batch) if isinstance(batch, Mapping) else batch,
    )


def batches_of_rank(loader: Iterable[Any], group: RankGroup, choice: Batches, seed: int) -> RankBatches:
    """Return this rank's batches. All ranks call it.

    Raises:
        InvalidInputError: on all ranks: the number of ranks doesn't divide the global batch; the data is shorter than
            one; a rank has no batch, or was told another place than it has.
    """
    problem, is_global = None, choice == "global"
    try:
        place = _place(loader)
        if place not in (None, (0, 1), (group.rank, group.world_size)):
            raise InvalidInputError(
                f"train_data is made for rank {place[0]} of {place[1]}, and this is rank {group.rank} of "
                f"{group.world_size}; give it rank= and world_size= of the process group, or leave them out."
            )
        if choice == "auto":
            is_global = place != (group.rank, group.world_size)
    except InvalidInputError as error:
        problem = error
    group.raise_together(problem)
    if choice == "auto" and is_global and _place(loader) is None:
        # Looking at an iterator would take its batch away.
        is_global = not isinstance(loader, Iterator) and _is_same_everywhere(loader, group, seed)
    found = None
    try:
        found = _global_part(loader, group) if is_global else RankBatches(loader=loader, is_global=False)
    except InvalidInputError as error:
        problem = error
    group.raise_together(problem)
    assert found is not None
    if is_global:
        return found
    return RankBatches(loader=loader, is_global=False, num_batches=_most_batches(loader, group))


def _place(loader: Any) -> tuple[int, int] | None:
    """Return the rank and number of ranks that a loader was made for; None where it doesn't say."""
    for owner in (loader, *samplers_of(loader)):
        if isinstance(owner, TokenBatches | TokenLoader):
            return owner.place
        world_size = getattr(owner, "world_size", getattr(owner, "num_replicas", None))
        if isinstance(world_size, int) and isinstance(getattr(owner, "rank", None), int):
            return owner.rank, world_size
    return None


def _is_same_everywhere(loader: Any, group: RankGroup, seed: int) -> bool:
    """Whether all ranks have the same data, judged by its length and what comes first."""
    first, problem = None, None
    try:
        with sample_generators(seed, 0, 0):
            first = _first_of(loader)
    except InvalidInputError as error:
        problem = error
    group.raise_together(problem)
    length = _length(loader)
    digests = group.gather(blake2b(pickle.dumps((length, _plain(first))), digest_size=16).digest())
    same = len(set(digests)) == 1
    if group.is_first:
        _log.info(
            "train_data %s, so its batches are %s. DataParallel(batches=…) says otherwise.",
            "is the same on all ranks" if same else "differs between ranks",
            "shared out among them" if same else "each rank's own",
        )
    return same


def _first_of(loader: Any) -> Any:
    if isinstance(loader, DataLoader) and loader.batch_sampler is not None and isinstance(loader.dataset, Sized):
        return loader.dataset[0] if len(loader.dataset) else None
    return check_has_batches(loader, "train_data")


def _plain(batch: Any) -> Any:
    return [leaf.cpu().numpy().tobytes() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves(batch)]


def _global_part(loader: Any, group: RankGroup) -> RankBatches:
    rank, world_size = group.rank, group.world_size
    if isinstance(loader, TokenBatches | TokenLoader):
        return RankBatches(loader=loader.part(rank, world_size), is_global=True)
    if type(loader) is DataLoader and loader.batch_sampler is not None:
        return _part_of_loader(loader, rank, world_size)
    if not isinstance(loader, Iterator):
        part_size(num_samples(check_has_batches(loader, "train_data")), world_size)
    return RankBatches(loader=loader, is_global=True, cut=True, num_batches=_length(loader))


def _part_of_loader(loader: DataLoader[Any], rank: int, world_size: int) -> RankBatches:
    """Return the loader with each rank loading no more than its part."""
    batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if batch_size is not None:
        part_size(batch_size, world_size)
        if len(loader.dataset) < batch_size:  # type: ignore[arg-type]
            raise InvalidInputError(
                f"A global batch is {batch_size} samples and the data set has {len(loader.dataset)}; "  # type: ignore[arg-type]
                "take a smaller batch size, or more data."
            )
    parts = PartSampler(loader.batch_sampler, rank, world_size)
    part_loader = DataLoader(
        loader.dataset,
        batch_sampler=parts,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
    return RankBatches(loader=part_loader, is_global=True, parts=parts, num_batches=_length(loader))


def _length(loader: Any) -> int | None:
    length = getattr(loader, "batches_per_epoch", None)
    if length is None and isinstance(loader, Sized):
        try:
            length = len(loader)
        except TypeError:  # a DataLoader of a stream has the method but no length
            return None
    return length


def _most_batches(loader: Any, group: RankGroup) -> int | None:
    lengths = group.gather(_length(loader))
    empty = [rank for rank, length in enumerate(lengths) if length == 0]
    if empty:
        raise InvalidInputError(f"train_data yields no batch on rank {empty[0]}: its part of the data is empty.")
    return None if None in lengths else max(lengths)
