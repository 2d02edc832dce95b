"""Measure what a real step allocates on the CPU: to check an estimate, or where none can be made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from .decoding_step import run_decoding
from .memory_profiler import profiled_memory
from .traced_optimizers import make_optimizer
from .tracing import recomputing
from .training_step import (
    GradientScaler,
    Inputs,
    Loss,
    autocast,
    call_model,
    check_precision,
    inputs_in,
    run_training_step,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def measure_step(
    factory: Callable[[], nn.Module],
    inputs: Callable[[], Inputs],
    *,
    optimizer: str | Callable[[Iterable[nn.Parameter]], Optimizer] = "adamw",
    precision: str = "fp32",
    grad_accumulation: int = 1,
    recompute: str | Sequence[str] = "none",
    mode: str = "train",
    loss: Loss | None = None,
) -> int:
    """Build the model, run two steps on the CPU and return the most bytes that were allocated at once.

    The same code as a trace runs, for real. Every allocation of PyTorch's CPU allocator counts, from the
    construction of the model on, unrounded. The arguments are those of
    :func:`fastbudget.cost.trace.tracing.trace_step`.
    """
    check_precision(precision)
    gc.collect()
    with profiled_memory() as profiler:
        _run(factory, inputs, optimizer, precision, grad_accumulation, recompute, mode, loss)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    alive = peak = 0
    for event in events:
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def _run(
    factory: Callable[[], nn.Module],
    inputs: Callable[[], Inputs],
    optimizer: str | Callable[[Iterable[nn.Parameter]], Optimizer],
    precision: str,
    grad_accumulation: int,
    recompute: str | Sequence[str],
    mode: str,
    loss: Loss | None,
) -> None:
    module = factory()
    if precision == "bf16":
        module.to(torch.bfloat16)
    module.train(mode == "train")
    batch = inputs_in(precision, inputs())
    with ExitStack() as stack:
        if mode in ("infer", "decode"):
            with torch.no_grad(), autocast(precision):
                if mode == "infer":
                    call_model(module, batch)
                else:
                    run_decoding(module, batch)
            return
        stack.enter_context(recomputing(module, recompute))
        update = make_optimizer(optimizer, module.parameters(), foreach=None)
        scaler = GradientScaler() if precision == "fp16-mixed" else None
        for _ in range(2):
            run_training_step(module, [batch] * grad_accumulation, update, loss, precision=precision, scaler=scaler)
