"""Parameters and operations of one micro-batch, from a trace without an optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .tracing import ModelOrFactory, trace_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from .training_step import Inputs, Loss


@dataclass(frozen=True, kw_only=True)
class StepCount:
    """Counts of one micro-batch; a multiply-add is two operations.

    Attributes:
        num_params: parameters, tied ones once.
        num_trainable_params: those that are trained.
        forward_flops: operations of the forward pass and the loss.
        step_flops: those and the backward pass.
    """

    num_params: int
    num_trainable_params: int
    forward_flops: int
    step_flops: int


def count_step(model: ModelOrFactory, inputs: Inputs | Callable[[], Inputs], *, loss: Loss | None = None) -> StepCount:
    """Count the operations of one micro-batch of the model, as it trains.

    Args:
        model: a module, left as it was, or a factory, called on fake tensors.
        inputs: one micro-batch, see :func:`fastbudget.cost.tracing.trace_step`.
        loss: ``loss(outputs, inputs) -> scalar``; None uses the model's own.

    Raises:
        InvalidInputError: the model's control flow depends on tensor contents, or there is no scalar loss.
    """
    trace = trace_step(model, inputs, loss=loss, mode="gradients", kernels="cuda")
    forward = trace.operations.flops_in("forward", "loss", step=0)
    return StepCount(
        num_params=trace.num_params,
        num_trainable_params=trace.num_trainable_params,
        forward_flops=forward,
        step_flops=forward + trace.operations.flops_in("backward", step=0),
    )
