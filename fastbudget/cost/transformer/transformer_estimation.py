"""What training a transformer costs, from its configuration alone: operations, memory and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ...core.errors import InvalidInputError
from ...core.interval import Interval
from ...hardware.devices import Device, find_device
from ...hardware.prices import Price, price_for
from ..runtime.calibration import Calibration, read_calibration
from ..runtime.step_time import estimate_step_time
from ..runtime.whole_run import device_hours
from .training_layout import TrainingLayout
from .transformer_config import read_transformer
from .transformer_flops import step_flops, step_tokens
from .transformer_memory import TransformerMemory, estimate_transformer_memory
from .transformer_shape import TransformerShape


@dataclass(frozen=True, kw_only=True)
class TransformerEstimate:
    """The cost of training a transformer.

    Attributes:
        num_params: parameters of the model; tied ones count once.
        num_active_params: those a token passes through.
        step_flops: the model's FLOPs of an optimizer step over all devices, recomputation not counted.
        total_flops: the same for all tokens; None when no number of tokens was given.
        step_time_s: seconds of an optimizer step; of a forward pass over the batch in ``mode="infer"``, of a
            token for every sequence in ``"decode"``. Intervals hold 80% of published runs.
        tokens_per_s_per_device: tokens trained on, read or made, per second and device.
        mfu: model FLOPs' share of the device's dense peak for the precision; causal attention counts half the
            square, recomputation isn't counted, ``"fp8-mixed"`` takes the 8-bit peak.
        hfu: the same with what is recomputed.
        gpu_hours: device-hours of a run over all tokens, restarts and evaluations as in published runs
            included; None when no number of tokens was given.
        wall_hours: the same, from start to end.
        cost_usd: ``gpu_hours`` at ``price``; None without tokens or a price. :func:`job_cost` counts start-up,
            evaluations, checkpoints, restarts and a buffer one by one.
        price: of one device for an hour, and where it comes from; None where none is known.
        time_parts: seconds of the step by cause; they sum to ``step_time_s.mid``.
        extrapolating: what lies outside the runs that the time model was fitted on, each in words.
        memory: peak memory per rank.
        shape: the model's shape.
        layout: how it is trained.
        device: what it is trained on.
    """

    num_params: int
    num_active_params: int
    step_flops: float
    total_flops: float | None
    step_time_s: Interval
    tokens_per_s_per_device: Interval
    mfu: Interval
    hfu: Interval
    gpu_hours: Interval | None
    wall_hours: Interval | None
    cost_usd: Interval | None
    price: Price | None
    time_parts: dict[str, float]
    extrapolating: tuple[str, ...]
    memory: TransformerMemory
    shape: TransformerShape
    layout: TrainingLayout
    device: Device


def estimate_transformer(
    config: str | PathLike[str] | Mapping[str, Any] | TransformerShape,
    *,
    seq_len: int,
    global_batch_size: int,
    hardware: str | Device,
    tokens: float | None = None,
    micro_batch_size: int = 1,
    num_devices: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    virtual_pipeline: int = 1,
    context_parallel: int = 1,
    expert_parallel: int = 1,
    sharding: str = "none",
    recompute: str = "none",
    precision: str = "bf16-mixed",
    optimizer: str = "adamw",
    offload: str = "none",
    framework: str = "pytorch",
    attention: str = "flash",
    loss: str = "eager",
    keeps_outputs: bool = False,
    compiled: bool = False,
    sequence_parallel: bool = True,
    lora_rank: int | None = None,
    lora_targets: tuple[str, ...] = ("q", "v"),
    trains_embeddings: bool = False,
    quantized_base: bool = False,
    optimizer_kernels: str = "foreach",
    empties_cache: bool = False,
    mode: str = "train",
    software: str | None = None,
    calibration: Calibration | str | PathLike[str] | None = None,
    price: float | str | PathLike[str] | None = None,
) -> TransformerEstimate:
    """Estimate the cost of training, or running, a transformer without building it.

    Args:
        config: a Hugging Face ``config.json`` (path or contents) or a preset such as ``"llama-3-8b"``.
        seq_len: tokens of a sequence; of the KV cache in ``mode="decode"``.
        global_batch_size: sequences of an optimizer step.
        hardware: the accelerator's name (``"h100-sxm"``, ``"a100-80gb"``).
        tokens: tokens to train on; None: only a step is estimated.
        micro_batch_size: sequences of one forward pass on one data-parallel rank.
        num_devices: all devices; what the other sizes leave is data parallelism.
        tensor_parallel: see :class:`TrainingLayout`, as for all that follow.
        pipeline_parallel: see there.
        virtual_pipeline: see there.
        context_parallel: see there.
        expert_parallel: see there.
        sharding: see there.
        recompute: see there.
        precision: see there.
        optimizer: see there.
        offload: see there.
        framework: see there.
        attention: see there.
        loss: see there.
        keeps_outputs: see there.
        compiled: see there.
        sequence_parallel: see there.
        lora_rank: see there.
        lora_targets: see there.
        trains_embeddings: see there.
        quantized_base: see there.
        optimizer_kernels: see there.
        empties_cache: see there.
        mode: see there.
        software: what trains, free-form, with a version or year (``"NeMo 25.04"``, ``"torch FSDP 2024"``); None:
            the average of all.
        calibration: what the machine was measured to do, or the path of the JSON that ``fastbudget calibrate``
            wrote; None: constants fitted on published runs.
        price: USD of one device for an hour, a provider's name, or a file of prices (see ``read_prices``); None:
            the median of the price table.

    Raises:
        InvalidInputError: a name is unknown, a size makes no sense, sizes don't divide each other, or the
            calibration is another device's.
    """
    if tokens is not None and not _is_count(tokens):
        raise InvalidInputError(f"tokens must be an integer in [1, 2**63), or None for one step, got {tokens!r}.")
    shape = read_transformer(config)
    device = find_device(hardware)
    paid = price_for(device, price)
    layout = TrainingLayout(
        seq_len=seq_len,
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
        num_devices=num_devices,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        virtual_pipeline=virtual_pipeline,
        context_parallel=context_parallel,
        expert_parallel=expert_parallel,
        sharding=sharding,
        recompute=recompute,
        precision=precision,
        optimizer=optimizer,
        offload=offload,
        framework=framework,
        attention=attention,
        loss=loss,
        keeps_outputs=keeps_outputs,
        compiled=compiled,
        sequence_parallel=sequence_parallel,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        trains_embeddings=trains_embeddings,
        quantized_base=quantized_base,
        optimizer_kernels=optimizer_kernels,
        empties_cache=empties_cache,
        mode=mode,
    )
    memory = estimate_transformer_memory(shape, layout, device)
    time = estimate_step_time(shape, layout, device, software=software, calibration=read_calibration(calibration))
    flops = step_flops(shape, layout)
    tokens_per_step = step_tokens(layout)
    hours = None if tokens is None else device_hours(time.seconds, tokens / tokens_per_step, layout)
    return TransformerEstimate(
        num_params=shape.num_params,
        num_active_params=shape.num_active_params,
        step_flops=flops,
        total_flops=None if tokens is None else flops * tokens / tokens_per_step,
        step_time_s=time.seconds,
        tokens_per_s_per_device=_rate(tokens_per_step / num_devices, time.seconds),
        mfu=time.mfu,
        hfu=time.hfu,
        gpu_hours=hours,
        wall_hours=None if hours is None else hours.scaled(1.0 / num_devices),
        cost_usd=None if hours is None or paid is None else hours.scaled(paid.usd_per_device_hour),
        price=paid,
        time_parts=time.parts,
        extrapolating=time.extrapolating,
        memory=memory,
        shape=shape,
        layout=layout,
        device=device,
    )


def _rate(amount: float, seconds: Interval) -> Interval:
    return Interval(amount / seconds.high, amount / seconds.mid, amount / seconds.low)


def _is_count(value: Any) -> bool:
    """Whether a value counts things; 1e12 does."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < 2**63 and value == value // 1
