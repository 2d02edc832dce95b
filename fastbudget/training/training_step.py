"""One optimizer step: the gradient of the whole accumulated batch, its scale, its clipping, its update."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..core.errors import InvalidInputError
from ..core.out_of_memory import is_out_of_memory, release_memory
from .batches import call_model, leaves, move, num_samples
from .generators import generators_restored
from .losses import Loss, check_scalar, count_targets
from .micro_batches import MicroBatches
from .nonfinite import gradient_norm, nonfinite_error, whole
from .optimizer_update import update_within_memory
from .precision import MixedPrecision
from .step_records import StepRecords

# A loss scale starts at 2^16 and halves at each skip, so more skips in a row than this have another cause.
_MOST_SKIPS_IN_A_ROW = 25


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How a step is taken.

    ``weight_of`` says what the loss of a micro-batch averages over; ``skip_nonfinite`` leaves out a step whose loss or
    gradient isn't finite instead of raising.
    """

    loss: Loss
    weight_of: Callable[[Any], float]
    clip_grad_norm: float | None = None
    skip_nonfinite: bool = False


class TrainingStep:
    """Takes steps of one model with one optimizer.

    Args:
        model: Called on each micro-batch.
        optimizer: Of its parameters; its groups' learning rates are what factors apply to.
        precision: Autocast and loss scale.
        device: Where the model is.
        options: See `StepOptions`.
        run_dir: Named in errors.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        precision: MixedPrecision,
        device: torch.device,
        options: StepOptions,
        run_dir: Path,
    ) -> None:
        self.model, self.optimizer, self.precision, self.device = model, optimizer, precision, device
        self.options, self._run_dir = options, run_dir
        self.micro_batches = MicroBatches(model, optimizer)
        self.base_rates = [group["lr"] for group in optimizer.param_groups]
        self.skips_in_a_row = 0
        # Batches for a CPU mostly are there already, and looking costs a microsecond; see `_look_at_first`.
        self._moves = device.type != "cpu"
        self._has_looked = False

    def take(self, batches: Sequence[Any], *, number: int, rate_factor: float, records: StepRecords) -> bool:
        """Take one step; return False when it was skipped.

        Args:
            batches: The loader's, cut into micro-batches as `MicroBatches` says.
            number: Of this step, from 1.
            rate_factor: On every group's own learning rate.
            records: Gets the step's loss, before the update.

        Raises:
            NonFiniteLossError: a loss or clipped norm isn't finite and such steps aren't skipped, or too many were.
            OutOfMemoryError: the step doesn't fit the memory even one sample at a time.
        """
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * rate_factor
        if not self._has_looked:
            self._look_at_first(batches[0])
        loss = self.micro_batches.backward(self._backward, batches)
        stepped = self._update(loss, number, self.base_rates[0] * rate_factor, records)
        self.optimizer.zero_grad(set_to_none=True)
        if stepped:
            self.skips_in_a_row = 0
        else:
            self._count_skip(number, records)
        return stepped

    def try_out(self, batch: Any) -> None:
        """Compute the loss of a batch on a copy of the model, to know before any cost what can't be trained on.

        Nobody can tell afterwards: model, loss and random generators are as before. So those that can't be copied, for
        want of memory or because they reach out of themselves (hooks, variables of a function around), are not tried.

        Raises:
            InvalidInputError: a batch without samples, or a loss that isn't a scalar of the model's parameters.
        """
        self._look_at_first(batch)
        if self.micro_batches.size is not None:
            batch = self.micro_batches.split([batch])[0]
        batch = move(batch, self.device)
        if not _is_self_contained(self.options.loss, self.model):
            return
        try:
            model, loss_of = copy.deepcopy((self.model, self.options.loss))
        except Exception:
            return
        with generators_restored(), self.precision.autocast():
            try:
                loss = loss_of(call_model(model, batch), batch)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                release_memory(error)
            else:
                check_scalar(loss)

    def _look_at_first(self, batch: Any) -> None:
        """Refuse a batch without samples, and see whether batches must be moved."""
        num_samples(batch)
        devices = {leaf.device for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)}
        self._moves = self._moves or devices != {self.device}
        self._has_looked = True
        if self._moves:
            try:
                move(batch, self.device)
            except NotImplementedError as error:
                places = ", ".join(sorted(map(str, devices)))
                raise InvalidInputError(
                    f"A batch of tensors on {places} can't be moved to {self.device}, where the model is: {error}"
                ) from error

    def _backward(self, batches: Sequence[Any]) -> torch.Tensor:
        """Add up the gradient of the mean loss over all batches together; return that loss."""
        if len(batches) == 1:
            loss = self._loss_of(batches[0])
            scaled = self.precision.scaler.scale(loss) if self.precision.scales else loss
            scaled.backward()
            return loss.detach()
        weights = [self.options.weight_of(batch) for batch in batches]
        whole = sum(weights)
        total = torch.zeros((), device=self.device)
        if not whole:
            return total / 0  # NaN, the mean of nothing, as torch's losses have it for one batch
        for batch, weight in zip(batches, weights, strict=True):
            if not weight:
                continue
            loss = self._loss_of(batch) * (weight / whole)
            self.precision.scaler.scale(loss).backward()
            total += loss.detach().float().reshape(())
        return total

    def _loss_of(self, batch: Any) -> torch.Tensor:
        if self._moves:
            batch = move(batch, self.device)
        if not self.precision.casts:
            return check_scalar(self.options.loss(call_model(self.model, batch), batch))
        with self.precision.autocast():
            return check_scalar(self.options.loss(call_model(self.model, batch), batch))

    def _update(self, loss: torch.Tensor, number: int, rate: float, records: StepRecords) -> bool:
        """Clip, record and step; return False when numbers that aren't finite made it skip the step."""
        skips, scales = self.options.skip_nonfinite, self.precision.scales
        if not (skips or scales) and self.options.clip_grad_norm is None:
            records.add(number, rate, loss, None)
            update_within_memory(self.optimizer, self.optimizer.step)
            return True
        if (skips or scales) and not math.isfinite(loss):
            if skips:
                return False
            raise nonfinite_error(f"The loss is {float(loss)} at step {number}", self._run_dir)
        scaler, norm = self.precision.scaler, None
        if scales:
            scaler.unscale_(self.optimizer)
        if self.options.clip_grad_norm is not None:
            norm = whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip_grad_norm))
        if scales:
            scale = scaler.get_scale()
            # not when a scaled gradient overflowed, which lowers the scale
            update_within_memory(self.optimizer, lambda: scaler.step(self.optimizer))
            scaler.update()
            if scaler.get_scale() < scale:
                return False
        elif skips and not math.isfinite(gradient_norm(self.model) if norm is None else norm):
            return False
        records.add(number, rate, loss, norm)
        if not scales:
            update_within_memory(self.optimizer, self.optimizer.step)
        return True

    def _count_skip(self, number: int, records: StepRecords) -> None:
        self.skips_in_a_row += 1
        records.add_skip(number - 1, self.skips_in_a_row)
        if self.skips_in_a_row >= _MOST_SKIPS_IN_A_ROW:
            what = f"{self.skips_in_a_row} steps in a row had a loss or gradient that isn't finite"
            raise nonfinite_error(what, self._run_dir)


def _is_self_contained(loss: Loss, model: torch.nn.Module) -> bool:
    """Whether copies of a loss and a model can be called without a trace in what lies outside of them."""
    functions = [loss, *(type(module).forward for module in model.modules())]
    has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return not has_hooks and not any(getattr(function, "__closure__", None) for function in functions)


def weight_function(choice: str | Callable[[Any], float], *, shifted: bool) -> Callable[[Any], float]:
    """Return the function that says what a micro-batch's loss averages over."""
    if callable(choice):
        return choice
    if choice == "samples":
        return num_samples
    if choice == "targets":
        return partial(count_targets, shifted=shifted)
    raise InvalidInputError(f"loss_weight must be 'targets', 'samples' or a function of the batch, got {choice!r}.")
