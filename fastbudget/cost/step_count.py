"""Parameters and FLOPs of one training step, counted on fake tensors: nothing is allocated or computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from ..core.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class StepCount:
    """Counts of one micro-batch; a fused multiply-add is two FLOPs.

    FLOPs are of matrix products, convolutions and attention, by torch's formulas; elementwise work is not in them.
    """

    num_params: int
    num_trainable_params: int
    forward_flops: int
    step_flops: int


def count_step(
    model: torch.nn.Module,
    forward: Callable[[torch.nn.Module, Any], Any],
    batch: Any,
    loss: Callable[[Any, Any], Any],
) -> StepCount:
    """Count one forward and backward pass.

    Args:
        model: As it will be trained; left as it is.
        forward: ``forward(model, batch) -> outputs``.
        batch: One micro-batch of real tensors; only shapes and dtypes matter.
        loss: ``loss(outputs, batch) -> scalar tensor``.

    Raises:
        InvalidInputError: the model's control flow depends on values, which fake tensors don't have.
    """
    params = list(model.parameters())
    trainable = sum(p.numel() for p in params if p.requires_grad)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        # One fake per real tensor, so that tied weights stay tied.
        fakes: dict[int, torch.Tensor] = {}

        def to_fake(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in fakes:
                fakes[id(value)] = fake.from_tensor(value)
            return fakes[id(value)]

        state = {
            name: to_fake(value)
            for name, value in [
                *model.named_parameters(remove_duplicate=False),
                *model.named_buffers(remove_duplicate=False),
            ]
        }
        fake_batch = tree_map(to_fake, batch)

        class Stateless(torch.nn.Module):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return functional_call(model, state, args, kwargs)

        counter = FlopCounterMode(display=False)
        try:
            with counter:
                value = loss(forward(Stateless(), fake_batch), fake_batch)
                forward_flops = counter.get_total_flops()
                if value.requires_grad:
                    value.backward()
        except torch._subclasses.fake_tensor.DataDependentOutputException as error:
            raise InvalidInputError(
                f"The model's FLOPs can't be counted without running it: it reads a tensor's value ({error}), as "
                "`.item()` or `if tensor:` do."
            ) from error
        step_flops = counter.get_total_flops()
    return StepCount(
        num_params=sum(p.numel() for p in params),
        num_trainable_params=trainable,
        forward_flops=int(forward_flops),
        step_flops=int(step_flops),
    )
