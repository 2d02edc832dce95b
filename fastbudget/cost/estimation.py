"""``fb.estimate``: what a step of a model costs, without running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from os import PathLike
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from ..core.errors import InvalidInputError, did_you_mean
from ..core.interval import Interval
from ..hardware.devices import Device, find_device, known_devices
from .allocator.allocator_settings import AllocatorConfig
from .batch_search import largest_batch
from .data_parallel_memory import check_data_parallel, on_one_rank
from .device_memory import DeviceMemory, on_device
from .memory_estimate import MemoryEstimate, estimate_memory
from .module_time.module_step_time import ModuleStepTime, StepSetting, module_step_time
from .runtime.calibration import Calibration, read_calibration
from .trace.allocation_log import AllocationLog
from .trace.tracing import ModelOrFactory, OptimizerChoice, Trace, trace_step
from .trace.training_step import Inputs, Loss


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What one step costs.

    Attributes:
        num_params: parameters, tied ones once.
        num_trainable_params: those that are trained.
        forward_flops: floating-point operations of the forward passes and losses of one step on one rank, over all its
            micro-batches: matrix products, convolutions and attention, a multiply-add being two.
        step_flops: those of the whole step, backward passes and recomputed layers included.
        memory: peak memory over building the model, a first step (optimizer states appear) and a steady one.
        time: of a step, in full; what follows is read from it, and computed when first asked for. None where no
            device is named (``"cuda"``, any GPU).
    """

    num_params: int
    num_trainable_params: int
    forward_flops: int
    step_flops: int
    memory: MemoryEstimate
    timing: Callable[[], ModuleStepTime | None] = field(default=lambda: None, repr=False, compare=False)

    @cached_property
    def time(self) -> ModuleStepTime | None:
        """The time of a step with its parts; without a calibration a CPU is measured for a moment."""
        return self.timing()

    @property
    def step_time_s(self) -> Interval | None:
        """Seconds of an optimizer step (train), a forward pass (infer) or a token (decode); 80%."""
        return None if self.time is None else self.time.seconds

    @property
    def mfu(self) -> Interval | None:
        """Model FLOPs' share of the device's peak: a CPU's is its fastest measured matrix product."""
        return None if self.time is None else self.time.mfu

    @property
    def hfu(self) -> Interval | None:
        """The same with recomputed FLOPs."""
        return None if self.time is None else self.time.hfu

    @property
    def time_parts(self) -> dict[str, float]:
        """Seconds by cause, which sum to the middle of ``step_time_s``."""
        return {} if self.time is None else self.time.parts

    @property
    def time_by_operation(self) -> dict[str, float]:
        """Seconds of computation by operation, the most first."""
        return {} if self.time is None else self.time.by_operation

    @property
    def time_by_module(self) -> dict[str, float]:
        """Seconds of computation by module, the most first; ``""`` is the model itself, and the optimizer."""
        return {} if self.time is None else self.time.by_module

    @property
    def extrapolating(self) -> tuple[str, ...]:
        """What lies outside the measured, each in words."""
        return () if self.time is None else self.time.extrapolating


def estimate(
    model: ModelOrFactory,
    inputs: Inputs | Callable[[], Inputs],
    *,
    optimizer: OptimizerChoice = "adamw",
    precision: str = "bf16-mixed",
    hardware: str | Device | None = None,
    num_devices: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    context_parallel: int = 1,
    expert_parallel: int = 1,
    sharding: str = "none",
    offload: str = "none",
    grad_accumulation: int = 1,
    recompute: str | Sequence[str] = "none",
    mode: str = "train",
    loss: Loss | None = None,
    allocator: AllocatorConfig | None = None,
    calibration: Calibration | str | PathLike[str] | None = None,
) -> Estimate:
    """Estimate the operations, the memory and the time of a step by tracing it on fake tensors.

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
        hardware: ``"cpu"``: the kernels of this machine's CPU, unrounded bytes. A GPU's name (``"h100-sxm"``,
            ``"a100-80gb"``): its memory decides what fits. ``"cuda"``: any NVIDIA GPU, without a verdict. None: the
            GPU that is there, else the CPU.
        num_devices: data-parallel ranks; the inputs are one rank's.
        tensor_parallel: 1: other layouts need a transformer's configuration, see ``fb.estimate_transformer``.
        pipeline_parallel: likewise.
        context_parallel: likewise.
        expert_parallel: likewise.
        sharding: ``"none"`` (DDP), ``"zero1"``, ``"zero2"`` or ``"zero3"`` (fully sharded, FSDP2).
        offload: ``"optimizer"`` keeps optimizer states on the host.
        grad_accumulation: micro-batches per optimizer step.
        recompute: ``"none"``, ``"module"`` (the model's own ``gradient_checkpointing_enable``), ``"full"``
            (each repeated block), or names of submodules, or of their classes, to recompute.
        mode: ``"train"``; ``"infer"`` (evaluation mode, no gradients); ``"decode"`` (for generating models of
            ``transformers``: the inputs are the prompt, the step is the token after it with a key-value
            cache, which counts as a buffer; memory covers both).
        loss: ``loss(outputs, inputs) -> scalar``; None uses the model's own: a scalar output, ``.loss`` or
            ``["loss"]``.
        allocator: options of PyTorch's allocator on a GPU; None: its defaults.
        calibration: what the machine was measured to do, or the file that ``fastbudget calibrate`` wrote. None: a
            GPU's rates come from published runs; a reference CPU's times are scaled to this one, which is measured for
            a fraction of a second when a time is first asked for.

    Raises:
        InvalidInputError: an argument is not usable, or the model's control flow depends on tensor contents.
    """
    _check_layout(tensor_parallel, pipeline_parallel, context_parallel, expert_parallel)
    check_data_parallel(num_devices, sharding, offload)
    kernels, device = _target(hardware)
    measured = _calibration_of(kernels, device, calibration)

    def trace_of(batch: Inputs | Callable[[], Inputs]) -> Trace:
        return trace_step(
            model,
            batch,
            optimizer=optimizer,
            precision=precision,
            grad_accumulation=grad_accumulation,
            recompute=recompute,
            mode=mode,
            loss=loss,
            kernels=kernels,
        )

    def one_rank(trace: Trace) -> tuple[AllocationLog, tuple[str, ...]]:
        mixed = precision.endswith("mixed")
        return on_one_rank(trace.log, num_devices=num_devices, sharding=sharding, offload=offload, half_weights=mixed)

    def on_gpu(log: AllocationLog) -> DeviceMemory | None:
        return None if kernels == "cpu" else on_device(log, device, num_devices=num_devices, allocator=allocator)

    def fits(samples: int) -> bool:
        found = on_gpu(one_rank(trace_of(partial(_with_samples, inputs, samples)))[0])
        return found is not None and found.fits != "no"

    trace = trace_of(inputs)
    log, notes = one_rank(trace)
    operations = trace.operations
    if mode in ("infer", "decode"):
        step = 0 if mode == "infer" else 1  # the prompt comes before the step
        forward_flops = step_flops = operations.flops_in("evaluate", step=step)
    else:
        forward_flops = operations.flops_in("forward", "loss", step=1)
        step_flops = operations.flops_in("forward", "loss", "backward", "optimizer", step=1)
    setting = None
    if kernels == "cpu" or device is not None:
        setting = StepSetting(
            mode=mode,
            precision=precision,
            device=device,
            num_devices=num_devices,
            sharding=sharding,
            offload=offload,
            grad_accumulation=grad_accumulation,
        )
    return Estimate(
        num_params=trace.num_params,
        num_trainable_params=trace.num_trainable_params,
        forward_flops=forward_flops,
        step_flops=step_flops,
        memory=estimate_memory(
            log,
            operations,
            on_gpu(log),
            notes=notes,
            search=None if device is None else partial(largest_batch, fits, _num_samples(inputs)),
        ),
        timing=(lambda: None) if setting is None else partial(module_step_time, trace, setting, measured),
    )


def _target(hardware: str | Device | None) -> tuple[str, Device | None]:
    """Return whose kernels are assumed, and the GPU whose memory decides."""
    if hardware is None:
        if not torch.cuda.is_available():
            return "cpu", None
        try:
            return "cuda", find_device(torch.cuda.get_device_name())
        except InvalidInputError:
            return "cuda", None  # a GPU that the table doesn't know has no verdict
    if hardware in ("cpu", "cuda"):
        return str(hardware), None
    try:
        return "cuda", find_device(hardware)
    except InvalidInputError:
        names = ("cpu", "cuda", *(known.key for known in known_devices()))
        raise InvalidInputError(
            f"hardware must be 'cpu', 'cuda' or an accelerator's name, got {hardware!r}."
            f"{did_you_mean(str(hardware), names)} `fastbudget hardware` lists them."
        ) from None


def _calibration_of(
    kernels: str, device: Device | None, calibration: Calibration | str | PathLike[str] | None
) -> Calibration | None:
    """Return the calibration if it is the target's."""
    found = read_calibration(calibration)
    wanted = "cpu" if kernels == "cpu" else None if device is None else device.key
    if found is not None and wanted is not None and found.device != wanted:
        raise InvalidInputError(
            f"calibration must be measured on {wanted}, got one of {found.device}. Give the hardware it was measured "
            "on, or run `fastbudget calibrate` on the machine that will run the model."
        )
    return found


def _check_layout(tensor: int, pipeline: int, context: int, expert: int) -> None:
    sizes = {
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "context_parallel": context,
        "expert_parallel": expert,
    }
    for name, size in sizes.items():
        if size != 1:
            raise InvalidInputError(
                f"{name} must be 1 for a traced module, got {size}: how a module is cut is not in its trace. Use "
                "fb.estimate_transformer with the model's configuration."
            )


def _given(inputs: Inputs | Callable[[], Inputs]) -> Inputs:
    return inputs() if callable(inputs) and not isinstance(inputs, (torch.Tensor, Mapping)) else inputs


def _num_samples(inputs: Inputs | Callable[[], Inputs]) -> int:
    """Return the size of the first dimension of the first tensor that has one."""
    for leaf in tree_leaves(_given(inputs)):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return int(leaf.shape[0])
    return 1


def _with_samples(inputs: Inputs | Callable[[], Inputs], samples: int) -> Inputs:
    """Return the inputs with another number of samples: repeated, or the first ones."""
    given = _given(inputs)
    size = _num_samples(given)

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim or tensor.shape[0] != size:
            return tensor
        return tensor[torch.arange(samples) % size]

    changed: Any = tree_map_only(torch.Tensor, resized, given)
    return changed
