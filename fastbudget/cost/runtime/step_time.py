"""The time of a transformer's step: a mechanistic model with fitted constants and an honest interval.

A micro-batch's forward and backward passes are timed layer by layer (``layer_time``), a pipeline fills and drains
around them (Narayanan et al. 2021, arXiv:2104.04473, section 2.2), then come data-parallel communication that
computation can't hide, the optimizer's step and what every step takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...core.interval import Interval
from ...hardware.devices import Device
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_flops import recomputed_flops, recomputes_attention_only, step_flops
from ..transformer.transformer_shape import TransformerShape
from .calibration import Calibration
from .data_parallel_time import data_parallel_seconds, offload_seconds, optimizer_seconds
from .layer_time import LayerSeconds, LayerTimes
from .links import Links, links_of
from .rates import Rates, achievable_rates
from .runtime_constants import RuntimeConstants
from .step_interval import extrapolated_dimensions, step_interval

# How sharply the slower of the device and the host wins: their p-norm.
_HOST_NORM = 4.0
# Up to so many rows a matrix product is thin.
_THIN_ROWS = 128


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The time of a step.

    Attributes:
        seconds: of an optimizer step (train), a forward pass over the batch (infer), or a token (decode); 80%.
        parts: seconds of the mid by cause; they sum to it.
        mfu: model FLOPs' share of the devices' dense peak for the precision (8-bit under ``"fp8-mixed"``).
        hfu: the same with recomputed FLOPs.
        extrapolating: what lies outside the runs that the constants were fitted on, each in words.
    """

    seconds: Interval
    parts: dict[str, float]
    mfu: Interval
    hfu: Interval
    extrapolating: tuple[str, ...]


def estimate_step_time(
    shape: TransformerShape,
    layout: TrainingLayout,
    device: Device,
    *,
    software: str | None = None,
    calibration: Calibration | None = None,
    constants: RuntimeConstants | None = None,
) -> StepTime:
    """Estimate the time of a step over all devices of a layout.

    Args:
        shape: the model.
        layout: how it is trained or run.
        device: the accelerator.
        software: what trains, free-form (``"NeMo 25.04"``, ``"torch FSDP 2023-11"``); None: the average.
        calibration: what the machine was measured to do; narrows the interval.
        constants: None: those that ship with the package.

    Raises:
        InvalidInputError: the device has no peak, or the calibration is another device's.
    """
    rates = achievable_rates(device, layout.precision, software=software, calibration=calibration, constants=constants)
    if layout.mode == "decode" or (layout.mode == "infer" and layout.micro_batch_tokens <= _THIN_ROWS):
        # Products of few rows have kernels of their own, which wait for the weights and for nothing else.
        rates = replace(rates, size_scale=0.0, multiprocessors=None)
    links = links_of(device, rates.constants, calibration)
    parts = step_parts(shape, layout, rates, links)
    extrapolating = extrapolated_dimensions(shape, layout, device, rates, links, software)
    seconds = step_interval(parts, shape, rates, len(extrapolating))
    flops = step_flops(shape, layout)
    peak = rates.peak_flops_per_s * layout.num_devices
    return StepTime(
        seconds=seconds,
        parts=parts,
        mfu=_utilization(flops, peak, seconds),
        hfu=_utilization(flops + recomputed_flops(shape, layout), peak, seconds),
        extrapolating=extrapolating,
    )


def step_parts(shape: TransformerShape, layout: TrainingLayout, rates: Rates, links: Links) -> dict[str, float]:
    """Return the seconds of a step by cause."""
    times = LayerTimes(shape, layout, rates, links)
    layer: dict[str, float] = {}
    for block, count in shape.block_counts:
        _add(layer, _pass_parts(times.layer(block), layout, rates), count / shape.layers)
    head = _pass_parts(times.head(), layout, rates, repeats=False)
    stages, micro_batches = layout.pipeline_parallel, layout.micro_batches
    held = -(-shape.layers // stages)
    last = held if shape.layers % stages == 0 else held - 1
    # The slowest stage sets the pace: the last one, which has the head, or one that has a layer more.
    layer_seconds, head_seconds = sum(layer.values()), sum(head.values())
    parts: dict[str, float] = {}
    if last * layer_seconds + head_seconds >= held * layer_seconds:
        _add(parts, layer, last * micro_batches)
        _add(parts, {"head_and_loss": head_seconds}, micro_batches)
    else:
        _add(parts, layer, held * micro_batches)
    window = sum(parts.values()) / micro_batches
    if stages > 1:
        chunks = layout.virtual_pipeline
        passes = 2 if layout.mode == "train" else 1
        sent = times.tokens * shape.hidden * 2.0 / (layout.tensor_parallel if layout.sequence_parallel else 1)
        handed = passes * chunks * links.neighbor_seconds(sent, stages, layout.num_devices // stages)
        parts["pipeline_communication"] = handed * micro_batches
        parts["pipeline_bubble"] = (stages - 1) / chunks * (held * layer_seconds + handed)
    if layout.mode == "train":
        parts["data_communication"] = data_parallel_seconds(shape, layout, links, window)
        parts["optimizer"] = optimizer_seconds(shape, layout, rates)
        parts["offload"] = offload_seconds(shape, layout)
        parts["fixed"] = rates.step_s
    nodes = max(layout.num_devices / 8, 1.0)
    parts["stragglers"] = sum(parts.values()) * rates.constants.straggler * math.log2(nodes)
    return {name: seconds for name, seconds in parts.items() if seconds}


def _pass_parts(layer: LayerSeconds, layout: TrainingLayout, rates: Rates, *, repeats: bool = True) -> dict[str, float]:
    """Return the seconds of a layer's forward pass and, in training, of its backward pass and what it repeats."""
    constants = rates.constants
    training = layout.mode == "train"
    # A frozen matrix takes no gradient of its own.
    backward = 0.0 if not training else 2.0 if layout.trains_all else 1.0
    passes = 3.0 if training else 1.0
    attention_passes = 1.0 + 2.0 * constants.attention_backward if training else 1.0
    recomputed = repeated = 0.0
    if training and repeats and layout.recompute != "none":
        whole = layer.matrix + layer.adapters + layer.attention + layer.memory
        if layout.recompute == "full":
            recomputed, repeated = whole, 1.0
        elif recomputes_attention_only(layout):
            recomputed = layer.attention
        else:
            recomputed, repeated = (layer.matrix + layer.memory) / 2.0, 0.5
    parts = {
        "matrix_products": layer.matrix * (1.0 + backward),
        "adapters": layer.adapters * passes,
        "attention": layer.attention * attention_passes,
        "memory_bound": layer.memory * passes,
        "recompute": recomputed,
    }
    collectives = (2.0 if training else 1.0) + (1.0 if layout.recompute == "full" and training else 0.0)
    parts["tensor_communication"] = layer.tensor * collectives * (1.0 - rates.tensor_overlap)
    parts["expert_communication"] = layer.experts * collectives * (1.0 - constants.expert_overlap)
    device = sum(parts.values())
    host = layer.launches * (passes + repeated)
    parts["launch_floor"] = (device**_HOST_NORM + host**_HOST_NORM) ** (1.0 / _HOST_NORM) - device
    if layer.context:
        hidden = constants.context_overlap * layer.attention
        exposed = max(layer.context - hidden, 0.0)
        if training:
            exposed += max(2.0 * layer.context - hidden * (attention_passes - 1.0), 0.0)
        parts["context_communication"] = exposed
    return parts


def _add(parts: dict[str, float], added: dict[str, float], times: float) -> None:
    for name, seconds in added.items():
        parts[name] = parts.get(name, 0.0) + seconds * times


def _utilization(flops: float, peak: float, seconds: Interval) -> Interval:
    return Interval(flops / (peak * seconds.high), flops / (peak * seconds.mid), flops / (peak * seconds.low))
