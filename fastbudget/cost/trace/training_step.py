"""One training step, as a plain loop would run it: the same code runs for real and on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from ...core.errors import InvalidInputError, did_you_mean, one_of

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

Inputs = Mapping[str, Any] | tuple[Any, ...] | torch.Tensor
Loss = Callable[[Any, Any], torch.Tensor]

PRECISIONS = ("fp32", "bf16-mixed", "fp16-mixed", "bf16")
_AUTOCAST_DTYPE = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def check_precision(precision: str) -> None:
    """Raise InvalidInputError unless ``precision`` is one of ``PRECISIONS``."""
    if precision not in PRECISIONS:
        raise InvalidInputError(
            f"precision must be one of {one_of(PRECISIONS)}, got {precision!r}."
            f"{did_you_mean(str(precision), PRECISIONS)}"
        )


def autocast(precision: str) -> AbstractContextManager[Any]:
    """Return the autocast context of a precision; one that does nothing for ``fp32`` and ``bf16``."""
    dtype = _AUTOCAST_DTYPE.get(precision)
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def inputs_in(precision: str, inputs: Inputs) -> Inputs:
    """Return the inputs as the precision wants them: pure ``bf16`` takes floating-point ones in bfloat16."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.bfloat16) if precision == "bf16" and tensor.is_floating_point() else tensor

    return tree_map_only(torch.Tensor, cast, dict(inputs) if isinstance(inputs, Mapping) else inputs)


def call_model(model: nn.Module, inputs: Inputs) -> Any:
    """Call the model: a mapping becomes keywords, a tuple positions, anything else the one argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(inputs)


def loss_of(outputs: Any, inputs: Inputs, loss: Loss | None) -> torch.Tensor:
    """Return the scalar loss: ``loss(outputs, inputs)``, or the model's own where ``loss`` is None.

    Raises:
        InvalidInputError: no loss was given and the outputs hold none, or the loss is no scalar tensor.
    """
    value: Any
    if loss is not None:
        value = loss(outputs, inputs)
    elif isinstance(outputs, torch.Tensor):
        value = outputs
    elif isinstance(outputs, Mapping) and "loss" in outputs:
        value = outputs["loss"]
    else:
        value = getattr(outputs, "loss", None)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        got = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise InvalidInputError(
            f"the loss must be a tensor with one element, got {got} from outputs of type "
            f"{type(outputs).__name__}. Pass loss=lambda outputs, batch: ..., or give the model what it "
            "needs to compute its own (labels)."
        )
    return value.reshape(()) if value.dim() else value


class GradientScaler:
    """The device work of ``torch.amp.GradScaler``, without its decision to skip, which reads a value."""

    def __init__(self) -> None:
        self._scale = torch.full((), 65536.0)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the scale."""
        return loss * self._scale

    @torch.no_grad()
    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, in place, and look for infinities."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        found_infinite = torch.full((), 0.0)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_infinite, self._scale.reciprocal())


def run_micro_batch(
    model: nn.Module,
    inputs: Inputs,
    loss: Loss | None,
    *,
    precision: str,
    grad_accumulation: int,
    scaler: GradientScaler | None = None,
    enter_phase: Callable[[str], None] = lambda phase: None,
) -> None:
    """Run forward, loss and backward of one micro-batch. The outputs are let go once the loss is known."""
    enter_phase("forward")
    with autocast(precision):
        outputs = call_model(model, inputs)
        enter_phase("loss")
        value = loss_of(outputs, inputs, loss)
        del outputs
        if grad_accumulation > 1:
            value = value / grad_accumulation
    if scaler is not None:
        value = scaler.scaled(value)
    enter_phase("backward")
    value.backward()


def run_training_step(
    model: nn.Module,
    micro_batches: list[Inputs],
    optimizer: Optimizer,
    loss: Loss | None,
    *,
    precision: str,
    scaler: GradientScaler | None = None,
    enter_phase: Callable[[str], None] = lambda phase: None,
) -> None:
    """Run one optimizer step over its micro-batches and set the gradients to None."""
    for inputs in micro_batches:
        run_micro_batch(
            model,
            inputs,
            loss,
            precision=precision,
            grad_accumulation=len(micro_batches),
            scaler=scaler,
            enter_phase=enter_phase,
        )
    enter_phase("optimizer")
    if scaler is not None:
        scaler.unscale(optimizer)
    optimizer.step()
    enter_phase("zero_grad")
    optimizer.zero_grad(set_to_none=True)
