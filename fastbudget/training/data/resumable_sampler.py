"""A shuffled order that can be entered anywhere: for a data set of any size, on any number of ranks and workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import Sampler

from ...core.errors import InvalidInputError
from ..batches import num_samples as samples_in
from ._native import Indices, permute_range

T = TypeVar("T")

_CHUNK = 8192  # samples whose order is computed at once
_MOST_SAMPLES = 2**62


class SampleIndex(int):
    """A data set's index that knows its sample's key (seed, epoch, number in the epoch's global order).

    It is an int everywhere. ``numpy.random.default_rng(index.key)`` draws what belongs to this sample in this epoch;
    `SeededDataset` does that to the global generators.
    """

    key: tuple[int, int, int]


def _with_key(index: int, key: tuple[int, int, int]) -> SampleIndex:
    keyed = SampleIndex(index)
    keyed.key = key
    return keyed


class ResumableSampler(Sampler[Any]):
    """The order of a map-style data set as a function of (seed, epoch, sample number), with nothing to replay.

    The shuffle is a keyed permutation computed per element (`IndexPermutation` in ``csrc``): no array of indices, a
    start at any position in constant time, at 10^9 samples as at 10. All ranks walk one global order: a global batch
    is its next ``batch_size * world_size`` samples, of which each rank takes ``batch_size`` in a row, so a run that
    goes on with another number of ranks goes on with the same order.

    With ``batch_size`` it is a batch sampler (``DataLoader(data, batch_sampler=sampler)``); without, a sampler
    (``DataLoader(data, sampler=sampler, batch_size=…)``), and ranks take turns sample by sample.

    A loader with workers asks for indices long before the loop gets their batches, so the position moves only when
    told what was consumed: loop over `track`, or call `advance` after each batch. `fb.Trainer` does it by itself.

    Args:
        num_samples: Length of the data set.
        batch_size: Samples per batch of one rank; None: yield single samples.
        seed: Of the order.
        shuffle: False: in the data set's order.
        drop_last: Leave out the samples that don't fill a last global batch; otherwise the ranks share them. Fewer
            samples than ranks are left out in either case.
        rank: This process's.
        world_size: Number of ranks.
        lengths: Length of each sample: batches are then made of samples of similar length, so that little is padded.
            In each stretch of ``pool_batches`` global batches the samples are sorted by length, and the order of
            the batches is shuffled again.
        pool_batches: See ``lengths``; more of them, less padding and less randomness.

    Raises:
        InvalidInputError: with ``drop_last``, fewer samples than one global batch; a rank outside the world.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        lengths: Sequence[int] | None = None,
        pool_batches: int = 64,
    ) -> None:
        check_ranks(rank, world_size)
        if batch_size is not None and batch_size < 1:
            raise InvalidInputError(f"batch_size must be at least 1, got {batch_size}.")
        if not 1 <= num_samples <= _MOST_SAMPLES:
            raise InvalidInputError(f"num_samples must be in [1, 2^62], got {num_samples}: is the data set empty?")
        if lengths is not None and (batch_size is None or len(lengths) != num_samples or pool_batches < 1):
            raise InvalidInputError(
                f"lengths needs a batch_size, one length per sample ({num_samples}), and pool_batches of at least 1; "
                f"got batch_size {batch_size}, {len(lengths)} lengths, pool_batches {pool_batches}."
            )
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self.rank, self.world_size = rank, world_size
        self.epoch, self.position = 0, 0
        self._global_batch = (batch_size or 1) * world_size
        self._lengths = None if lengths is None else np.asarray(lengths)
        self._pool = pool_batches * self._global_batch
        self.samples_per_epoch = self._end(0)
        if self.samples_per_epoch == 0:
            raise InvalidInputError(
                f"A global batch is {self._global_batch} samples ({batch_size or 1} on each of {world_size} ranks) and "
                f"the data set has {num_samples}; take a smaller batch_size, or drop_last=False."
            )
        self._drew, self._told = False, False
        self._exhausted: tuple[int, int] | None = None

    # -- the order -------------------------------------------------------------------------------------------------

    def _end(self, position: int) -> int:
        """Where the epoch ends for ranks that go on from a position."""
        tail = (self.num_samples - position) % self._global_batch
        return self.num_samples - (tail if self.drop_last or tail < self.world_size else 0)

    def global_order(self, begin: int, end: int, *, epoch: int | None = None) -> Indices:
        """Return the data set's indices at places [begin, end) of an epoch's order over all ranks; int64."""
        epoch = self.epoch if epoch is None else epoch
        if self._lengths is None:
            return self._shuffled(begin, end, epoch)
        first, last = begin // self._pool, max(begin, end - 1) // self._pool
        pools = [self._bucketed(pool, epoch) for pool in range(first, last + 1)]
        return np.concatenate(pools)[begin - first * self._pool : end - first * self._pool]

    def _shuffled(self, begin: int, end: int, epoch: int) -> Indices:
        if self.shuffle:
            return permute_range(self.num_samples, self.seed, epoch, begin, end)
        return np.arange(begin, end)

    def _bucketed(self, pool: int, epoch: int) -> Indices:
        """One pool of the order: sorted by length, cut into global batches, those shuffled; a short one stays last."""
        assert self._lengths is not None
        begin = pool * self._pool
        members = self._shuffled(begin, min(begin + self._pool, self.num_samples), epoch)
        members = members[np.argsort(self._lengths[members], kind="stable")]
        full = len(members) // self._global_batch
        if not full or not self.shuffle:
            return members
        batches = members[: full * self._global_batch].reshape(full, self._global_batch)
        order = permute_range(full, self.seed + 1 + pool, epoch, 0, full)
        return np.concatenate([batches[order].ravel(), members[full * self._global_batch :]])

    def __len__(self) -> int:
        """Batches (or samples) this rank gets in a whole epoch."""
        if self.batch_size is None:
            return self.samples_per_epoch // self.world_size
        return -(-self.samples_per_epoch // self._global_batch)

    def __iter__(self) -> Iterator[Any]:
        """Yield what is left of the epoch. The next call goes on after what was consumed, or with the next epoch."""
        if self._exhausted == (self.epoch, self.position):  # iterated to its end by somebody who keeps no position
            self.epoch, self.position = self.epoch + 1, 0
        begin = epoch, position = self.epoch, self.position
        self._exhausted = None
        chunk = -(-_CHUNK // self._global_batch) * self._global_batch
        end = self._end(position)
        while position < end:
            order = self.global_order(position, min(position + chunk, end), epoch=epoch)
            for first in range(0, len(order), self._global_batch):
                size = min(self._global_batch, len(order) - first)
                low, high = self.rank * size // self.world_size, (self.rank + 1) * size // self.world_size
                numbers = range(position + first + low, position + first + high)
                indices = [
                    _with_key(index, (self.seed, epoch, number))
                    for index, number in zip(order[first + low : first + high].tolist(), numbers, strict=True)
                ]
                self._drew = True
                yield indices if self.batch_size is not None else indices[0]
            position += len(order)
        self._exhausted = begin

    # -- the position ----------------------------------------------------------------------------------------------

    def track(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the batches of a loader that uses this sampler, and count each as consumed when the loop gets it."""
        self._told = True
        for batch in loader:
            self.advance(samples_in(batch) if self.batch_size is None else None)
            yield batch
        if self.position:  # a loader that dropped the last samples
            self.epoch, self.position = self.epoch + 1, 0

    def advance(self, num_samples: int | None = None) -> None:
        """Count one batch as consumed, on all ranks at once.

        Args:
            num_samples: Samples in this rank's batch; None: ``batch_size``.
        """
        own = num_samples if num_samples is not None else self.batch_size
        if own is None:
            raise InvalidInputError("A sampler without batch_size must be told how many samples were consumed.")
        self._told = True
        self._go_to(self.epoch, min(self.position + own * self.world_size, self.num_samples))  # a last batch is shorter

    def _go_to(self, epoch: int, position: int) -> None:
        ended = position >= self._end(position)
        self.epoch, self.position = (epoch + 1, 0) if ended else (epoch, position)

    def state_dict(self) -> dict[str, Any]:
        """Return the position: epochs finished, and samples consumed in this one over all ranks.

        Raises:
            InvalidInputError: batches were drawn and nobody told how many of them were consumed.
        """
        if self._drew and not self._told:
            raise InvalidInputError(
                "The sampler gave indices but wasn't told which were consumed, so its position is unknown; loop over "
                "sampler.track(loader), or call sampler.advance() after each batch."
            )
        return {"epoch": self.epoch, "position": self.position, **self._order()}

    def _order(self) -> dict[str, Any]:
        """What the order depends on, besides the position."""
        pool = self._pool if self._lengths is not None else None
        return {"num_samples": self.num_samples, "seed": self.seed, "shuffle": self.shuffle, "pool": pool}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another sampler stood, on any number of ranks.

        Raises:
            InvalidInputError: the state belongs to another order: other data, seed, or batches by length of other size.
        """
        check_same_order(state, self._order())
        if self._lengths is not None and state["position"] % self._global_batch:
            raise InvalidInputError(
                f"{state['position']} samples of the epoch were consumed, which is no multiple of the global batch of "
                f"{self._global_batch}; with lengths, batch_size * world_size must stay."
            )
        self.set_position(int(state["epoch"]), int(state["position"]))

    def set_position(self, epoch: int, position: int = 0) -> None:
        """Go on in an epoch after so many of its samples, counted over all ranks."""
        self._drew, self._told, self._exhausted = False, False, None
        self._go_to(epoch, position)


def check_ranks(rank: int, world_size: int) -> None:
    """Raise InvalidInputError unless rank is one of the world's."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise InvalidInputError(f"rank must be in [0, world_size), got rank {rank} of world_size {world_size}.")


def part_size(batch_size: int, world_size: int) -> int:
    """Return each rank's share of a global batch.

    Raises:
        InvalidInputError: it can't be shared out evenly.
    """
    if batch_size % world_size:
        raise InvalidInputError(
            f"A global batch of {batch_size} samples can't be shared evenly by {world_size} ranks; take a batch size "
            f"that is a multiple of {world_size}, such as {-(-batch_size // world_size) * world_size}, or other ranks."
        )
    return batch_size // world_size


def check_same_order(state: Mapping[str, Any], order: Mapping[str, Any]) -> None:
    """Raise InvalidInputError where a saved position lacks a part or belongs to another order than this one."""
    missing = sorted({"epoch", "position", *order} - state.keys())
    if missing:
        raise InvalidInputError(f"The data position lacks {', '.join(missing)}; was it saved by something else?")
    for name, value in order.items():
        if state[name] != value:
            raise InvalidInputError(
                f"The data position was saved with {name} {state[name]!r} and is loaded with {value!r}: the order "
                "would be another. Resume with the same data and settings, or start anew."
            )
