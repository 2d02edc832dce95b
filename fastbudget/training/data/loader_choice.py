"""A DataLoader with as many workers as help, found by trying."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ...core.errors import InvalidInputError
from ...hardware import usable_cpus
from ..generators import generators_restored
from .resumable_sampler import ResumableSampler
from .seeded_dataset import SeededDataset

_log = logging.getLogger("fastbudget.training")

_MOST_WORKERS = 8
_WORTH_IT = 1.2  # more workers must bring at least this factor
_AS_FAST = 0.95


def make_loader(
    dataset: Any,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    rank: int = 0,
    world_size: int = 1,
    lengths: Sequence[int] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    seeded: bool = True,
    num_workers: int | None = None,
    pin_memory: bool | None = None,
    measure_s: float = 2.0,
) -> DataLoader[Any]:
    """Return a DataLoader of a map-style data set that can be resumed anywhere, with as many workers as help.

    0, 1, 2, 4, 8 workers, as far as there are CPUs, are tried on a few batches, and the fewest within a fifth of the
    best are taken, if they load at least as fast as none: they also load while the loop computes. On data that lies
    in memory, workers cost more than they give. The choice and its figures are logged to ``fastbudget.training``.

    Args:
        dataset: With ``__len__`` and ``__getitem__``.
        batch_size: Samples per batch of one rank.
        seed: Of the order and of augmentation.
        shuffle: A new order each epoch.
        drop_last: Leave out what doesn't fill a last global batch.
        rank: This process's.
        world_size: Number of ranks.
        lengths: Length of each sample, to put similar ones together; see `ResumableSampler` and `PaddingCollate`.
        collate_fn: Makes a batch of a list of samples; None: torch's.
        seeded: Draw augmentation from a key per sample (`SeededDataset`), so that workers don't change it; False saves
            some ten microseconds a sample where nothing is drawn.
        num_workers: Not tried but taken.
        pin_memory: None: where there is a GPU.
        measure_s: Most seconds to spend on trying.

    Raises:
        InvalidInputError: a data set without a length, or too short for one global batch with ``drop_last``.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InvalidInputError(
            f"dataset must have __len__ and __getitem__, got a {type(dataset).__name__}; for a stream use torch's "
            "DataLoader."
        )
    samples = SeededDataset(dataset) if seeded else dataset

    def loader(workers: int) -> DataLoader[Any]:
        sampler = ResumableSampler(
            len(dataset), batch_size=batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last, rank=rank,
            world_size=world_size, lengths=lengths,
        )  # fmt: skip
        return DataLoader(
            samples,
            batch_sampler=sampler,
            collate_fn=collate_fn,
            num_workers=workers,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
        )

    if num_workers is None:
        loader(0)  # refuses bad arguments before anything is tried
        with generators_restored():
            num_workers = _choose_workers(loader, measure_s)
    return loader(num_workers)


def _choose_workers(loader: Callable[[int], DataLoader[Any]], measure_s: float) -> int:
    most = min(_MOST_WORKERS, usable_cpus())
    candidates = [0, *(2**power for power in range(most.bit_length()))]
    rates: dict[int, float] = {}
    for workers in candidates:
        try:
            rates[workers] = _batches_per_s(loader(workers), measure_s / len(candidates))
        except Exception as error:
            if workers == 0:
                raise
            _log.warning("Loading with %d workers fails (%s); they are not used.", workers, error)
            break
        if workers > 1 and rates[workers] < rates[workers // 2]:
            break
    alone, best = rates.pop(0), max(rates.values(), default=0.0)
    enough = min((workers for workers, rate in rates.items() if rate * _WORTH_IT >= best), default=0)
    chosen = enough if best >= _AS_FAST * alone else 0
    figures = ", ".join(f"{rate:.0f} with {workers}" for workers, rate in {0: alone, **rates}.items())
    _log.info("Data loading uses %d workers: batches/s were %s, on %d CPUs.", chosen, figures, usable_cpus())
    return chosen


def _batches_per_s(loader: DataLoader[Any], limit_s: float) -> float:
    """Rate after the first batch, which waits for the workers to start."""
    batches = iter(loader)
    next(batches)
    begin = time.perf_counter()
    # What workers read ahead while they started must not count as speed, unless loading is so slow that it matters not.
    for _ in islice(batches, 2 * loader.num_workers * (loader.prefetch_factor or 0)):
        if time.perf_counter() - begin > limit_s:
            break
    begin, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        if time.perf_counter() - begin > limit_s:
            break
    elapsed = time.perf_counter() - begin
    return count / elapsed if count else 1 / limit_s
