"""Batches without end on every rank: epochs begin and end on all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import register_pytree_node

from ..batch_stream import EPOCH_END, BatchStream, epoch_seed, no_batch
from ..batches import num_samples
from .rank_batches import RankBatches, cut_batch, part
from .rank_group import RankGroup


@dataclass(frozen=True)
class Padding:
    """A batch that takes part in a step, because all ranks must, but doesn't count: its weight is 0."""

    batch: Any


register_pytree_node(Padding, lambda padding: ([padding.batch], None), lambda batches, _: Padding(*batches))


class RankStream(BatchStream):
    """One rank's batches; padding where it has none and another rank does.

    The order is drawn alike on all ranks; what is drawn afterwards, such as dropout, differs.

    Args:
        batches: This rank's.
        group: All ranks.
        seed: Of the order.
        state: What ``state_dict`` returned; None: from the start.
    """

    def __init__(
        self, batches: RankBatches, group: RankGroup, *, seed: int, state: Mapping[str, Any] | None = None
    ) -> None:
        self._batches, self._group = batches, group
        self._may_end_early = not batches.is_global
        self._last: Any = None
        self._whole_size = 0
        own = seed if batches.is_global else seed + group.rank * 7_919  # other data, another order
        super().__init__(batches.loader, seed=own, state=state)

    def _count(self, batch: Any) -> None:
        self._last = batch
        if self._batches.parts is not None:
            self._whole_size = self._batches.parts.sizes.popleft()
        super()._count(batch)

    def _samples_in(self, batch: Any) -> int:
        return self._whole_size or num_samples(batch)

    def _draw(self) -> Any:
        batch = super()._draw()
        if self._batches.is_global:
            return batch if batch is EPOCH_END else self._part_of(batch)
        has_batch = batch is not EPOCH_END
        if not self._goes_on(has_batch):
            return EPOCH_END
        if has_batch:
            return batch
        self.position += 1
        if self._last is None:
            raise no_batch()
        return Padding(self._last)

    def _goes_on(self, has_batch: bool) -> bool:
        """Whether any rank has a batch left in this epoch."""
        if self._batches.num_batches is None:
            return self._group.any(has_batch)
        return self.position - has_batch < self._batches.num_batches

    def _part_of(self, batch: Any) -> Any:
        rank, world_size = self._group.rank, self._group.world_size
        if rank and self.position == 1:  # the order of this epoch is drawn by now
            torch.manual_seed((epoch_seed(self._seed, self.epoch) + rank * 2**40) % 2**63)
        if self._batches.cut:
            mine = cut_batch(batch, rank, world_size)
            return Padding(batch) if mine is None else mine
        if self._whole_size:
            mine = part(self._whole_size, rank, world_size)
            return Padding(batch) if mine.start == mine.stop else batch
        return batch
