"""What a training asks of its ranks; a run of one process has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ...core.errors import InvalidInputError, one_of
from ..batch_stream import BatchStream
from .data_parallel import DataParallel
from .joined_values import join
from .launch_environment import launched_ranks, read_launch_environment
from .rank_batches import RankBatches, batches_of_rank
from .rank_failures import RankFailures, shorten_tracebacks
from .rank_group import RankGroup
from .rank_models import RankModel, prepare_model
from .rank_stream import RankStream

T = TypeVar("T")


def find_ranks(distributed: DataParallel | str | None, device: torch.device) -> Ranks | None:
    """Return the ranks of the run that this process is part of, None if it is alone.

    Args:
        distributed: Options, or a strategy's name; None: the defaults where a launcher started several ranks, or the
            program made a process group.
        device: Where this rank's model is.

    Raises:
        InvalidInputError: a launcher's variables are missing, or the ranks' devices don't fit together.
    """
    if isinstance(distributed, str):
        distributed = DataParallel(strategy=distributed)  # type: ignore[arg-type]
    if distributed is not None and not isinstance(distributed, DataParallel):
        raise InvalidInputError(
            f"distributed must be a DataParallel, {one_of(('ddp', 'fsdp2'))} or None, got {distributed!r}."
        )
    if dist.is_available() and dist.is_initialized():
        world_size = dist.get_world_size()
    elif distributed is None:
        world_size = launched_ranks()
    else:
        world_size = read_launch_environment().world_size
    return Ranks(distributed or DataParallel(), device) if world_size > 1 else None


class Ranks:
    """This process and the others of its run. Made by all at once; all call the same methods in the same order."""

    def __init__(self, options: DataParallel, device: torch.device) -> None:
        self.options = options
        self.group = RankGroup(device, options.timeout_s)
        self.rank, self.world_size = self.group.rank, self.group.world_size
        self.is_first = self.group.is_first
        self._model: RankModel | None = None
        self._shared: Iterable[Any] | None = None
        self._batches: RankBatches | None = None
        shorten_tracebacks()

    def failing_together(self) -> AbstractContextManager[None]:
        """Return the context of a run: a rank that leaves it with an error ends the others."""
        return RankFailures().shared()

    # -- the model -------------------------------------------------------------------------------------------------

    def prepare(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        """Return what is called in training in the model's place; see `prepare_model`."""
        self._model = prepare_model(model, optimizer, self.options)
        return self._model.forward

    @property
    def model(self) -> RankModel:
        """The model as prepared."""
        assert self._model is not None
        return self._model

    # -- data ------------------------------------------------------------------------------------------------------

    def share_out(self, train_data: Iterable[Any], seed: int) -> int | None:
        """Take this rank's part of the data; returns the number of batches in an epoch, if it is known."""
        self._shared, self._batches = train_data, batches_of_rank(train_data, self.group, self.options.batches, seed)
        return self._batches.num_batches

    def stream(self, train_data: Iterable[Any], *, seed: int, state: Mapping[str, Any] | None = None) -> BatchStream:
        """Return this rank's batches of the data, from the start or a saved position."""
        if train_data is not self._shared:
            self.share_out(train_data, seed)
        assert self._batches is not None
        return RankStream(self._batches, self.group, seed=seed, state=state)

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluated(self, function: Callable[[], T]) -> T:
        """Return rank 0's result of an evaluation that rank 0, or every rank, makes as the options say."""
        if not self.options.evaluates_on_all:
            return self.group.done_by_rank_0(function)
        self.model.share_buffers()
        result = function()
        self.model.settle()
        return self.group.from_rank_0(result)

    # -- state -----------------------------------------------------------------------------------------------------

    def joined(self, own: Any) -> Any:
        """Return what all ranks have of their own as one value, for a checkpoint."""
        return join(self.group.gather(own))
