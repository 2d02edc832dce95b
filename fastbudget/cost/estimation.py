"""``fb.estimate``: what a step of a model costs, without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..core.errors import InvalidInputError, did_you_mean, one_of
from .memory_estimate import MemoryEstimate, estimate_memory
from .tracing import ModelOrFactory, OptimizerChoice, trace_step
from .training_step import Inputs, Loss

# Device names come with the table of devices; until then a GPU is a GPU.
KERNELS = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What one step costs on one device.

    Attributes:
        num_params: parameters, tied ones once.
        num_trainable_params: those that are trained.
        forward_flops: floating-point operations of the forward passes and losses of one step, over all its
            micro-batches: matrix products, convolutions and attention, a multiply-add being two.
        step_flops: those of the whole step, backward passes and recomputed layers included.
        memory: peak memory over building the model, a first step (optimizer states appear) and a steady one.
    """

    num_params: int
    num_trainable_params: int
    forward_flops: int
    step_flops: int
    memory: MemoryEstimate


def estimate(
    model: ModelOrFactory,
    inputs: Inputs | Callable[[], Inputs],
    *,
    optimizer: OptimizerChoice = "adamw",
    precision: str = "bf16-mixed",
    hardware: str | None = None,
    grad_accumulation: int = 1,
    recompute: str = "none",
    mode: str = "train",
    loss: Loss | None = None,
) -> Estimate:
    """Estimate the operations and the memory of a step by tracing it on fake tensors.

    Nothing is allocated for the model. Eager mixtures of experts are assumed to route tokens evenly. The
    model's outputs are taken to be let go once the loss is known, as trainers do; a loop that keeps them
    needs more.

    Args:
        model: a module, left as it was, or a factory, called on fake tensors.
        inputs: one micro-batch: a mapping (keywords), a tuple (positions) or a tensor (the one argument), or
            a callable that returns one of these.
        optimizer: ``"adamw"``, ``"adamw-8bit"``, ``"sgd"``, ``"sgd-momentum"``, ``"adafactor"``, ``"lion"``,
            ``"muon"``, or a callable ``parameters -> Optimizer``.
        precision: ``"fp32"``, ``"bf16-mixed"``, ``"fp16-mixed"`` (with gradient scaling) or ``"bf16"``.
        hardware: ``"cpu"``: the kernels of this machine's CPU, unrounded bytes. ``"cuda"``: those of an
            NVIDIA GPU.
            None: a GPU where there is one, else the CPU.
        grad_accumulation: micro-batches per optimizer step.
        recompute: ``"none"``, ``"module"`` (the model's own ``gradient_checkpointing_enable``) or ``"full"``
            (each repeated block).
        mode: ``"train"``; ``"infer"`` (evaluation mode, no gradients); ``"decode"`` (for generating models of
            ``transformers``: the inputs are the prompt, the step is the token after it with a key-value
            cache, which counts as a buffer; memory covers both).
        loss: ``loss(outputs, inputs) -> scalar``; None uses the model's own: a scalar output, ``.loss`` or
            ``["loss"]``.

    Raises:
        InvalidInputError: an argument is not usable, or the model's control flow depends on tensor contents.
    """
    kernels = _kernels_of(hardware)
    trace = trace_step(
        model,
        inputs,
        optimizer=optimizer,
        precision=precision,
        grad_accumulation=grad_accumulation,
        recompute=recompute,
        mode=mode,
        loss=loss,
        kernels=kernels,
    )
    operations = trace.operations
    if mode in ("infer", "decode"):
        step = 0 if mode == "infer" else 1  # the prompt comes before the step
        forward_flops = step_flops = operations.flops_in("evaluate", step=step)
    else:
        forward_flops = operations.flops_in("forward", "loss", step=1)
        step_flops = operations.flops_in("forward", "loss", "backward", "optimizer", step=1)
    return Estimate(
        num_params=trace.num_params,
        num_trainable_params=trace.num_trainable_params,
        forward_flops=forward_flops,
        step_flops=step_flops,
        memory=estimate_memory(trace.log, operations),
    )


def _kernels_of(hardware: str | None) -> str:
    if hardware is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if hardware not in KERNELS:
        raise InvalidInputError(
            f"hardware must be one of {one_of(KERNELS)} or None, got {hardware!r}."
            f"{did_you_mean(str(hardware), KERNELS)}"
        )
    return hardware
