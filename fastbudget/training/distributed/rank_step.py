"""One optimizer step of all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...core.out_of_memory import is_out_of_memory
from ..batches import call_model, leaves, move
from ..losses import check_scalar
from ..training_step import TrainingStep
from .rank_stream import Padding
from .ranks import Ranks


class RankTrainingStep(TrainingStep):
    """Takes steps whose gradient is that of the mean loss over all ranks' micro-batches together.

    Losses are weighted by the sum of weights over micro-batches and ranks, so that unequal batches, and none at all,
    are right. Gradients are reduced during the last micro-batch's backward. While a batch is larger than any before,
    they are reduced after it instead: then a rank that runs out of memory can still tell the others, and all redo the
    step.

    Args:
        model: Bare, or sharded.
        ranks: With the model prepared.
        arguments: See `TrainingStep`.
    """

    def __init__(self, model: torch.nn.Module, *arguments: Any, ranks: Ranks, **options: Any) -> None:
        super().__init__(model, *arguments, **options)
        self._ranks = ranks
        self._spare: Any = None
        self._largest = 0

    def try_out(self, batch: Any) -> None:
        """See `TrainingStep.try_out`. A sharded model can't be copied."""
        if not self._ranks.model.is_sharded:
            super().try_out(batch.batch if isinstance(batch, Padding) else batch)

    def _backward(self, batches: Sequence[Any]) -> torch.Tensor:
        ranks, model = self._ranks, self._ranks.model
        if model.is_sharded:  # whose forwards are collective, so all ranks must make as many
            missing = max(ranks.group.gather(len(batches))) - len(batches)
            batches = [*batches, *[Padding(batches[-1])] * missing]
        weights = [0.0 if isinstance(batch, Padding) else float(self.options.weight_of(batch)) for batch in batches]
        largest = max(map(_num_elements, batches))
        whole, unknown = ranks.group.sums(sum(weights), largest > self._largest and model.runs_bare)
        if not whole:
            return torch.full((), torch.nan, device=self.device)
        factors = [weight * ranks.world_size / whole for weight in weights]
        loss = self._reduced_afterwards(batches, factors) if unknown else self._reduced_meanwhile(batches, factors)
        self._largest = max(self._largest, largest)
        dist.all_reduce(loss)
        return loss / ranks.world_size

    def _reduced_meanwhile(self, batches: Sequence[Any], factors: Sequence[float]) -> torch.Tensor:
        model, total = self._ranks.model, torch.zeros((), device=self.device)
        for number, (batch, factor) in enumerate(zip(batches, factors, strict=True), 1):
            with model.synced(last=number == len(batches)):
                total += self._backward_of(model.forward, batch, factor)
        return total

    def _reduced_afterwards(self, batches: Sequence[Any], factors: Sequence[float]) -> torch.Tensor:
        """Compute the gradient without talking to other ranks, hear whether they all could, then reduce it.

        Raises:
            torch.OutOfMemoryError: on all ranks, when any ran out of memory.
        """
        total, failure = torch.zeros((), device=self.device), None
        try:
            for batch, factor in zip(batches, factors, strict=True):
                total += self._backward_of(self.model, batch, factor)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = error
        if self._ranks.group.any(failure is not None):
            raise failure or torch.OutOfMemoryError("Another rank ran out of memory in this step.")
        self._ranks.model.reduce_gradients()
        return total

    def _backward_of(self, model: torch.nn.Module, batch: Any, factor: float) -> torch.Tensor:
        """Add the gradient of one micro-batch's weighted loss; returns that loss.

        One without weight is computed all the same, because the other ranks wait in it. It takes the place of a batch
        that had a loss: a mean over no target may have NaN gradients, even times 0.
        """
        if factor:
            self._spare = batch
        elif self._spare is not None:
            batch = self._spare
        if isinstance(batch, Padding):
            batch = batch.batch
        batch = move(batch, self.device)
        with self.precision.autocast():
            loss = check_scalar(self.options.loss(call_model(model, batch), batch)) * factor
        self.precision.scaler.scale(loss).backward()
        return loss.detach().float().reshape(()) if factor else torch.zeros((), device=self.device)


def _num_elements(batch: Any) -> int:
    return max((leaf.numel() for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)), default=0)
