"""How sure a step time is: an 80% interval, and what lies outside the runs that the constants were fitted on."""

from __future__ import annotations

import math

from ...core.interval import Interval
from ...hardware.devices import Device
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_shape import TransformerShape
from .device_peaks import generation_of
from .links import Links
from .rates import Rates
from .runtime_constants import RuntimeConstants, runtime_table
from .software import read_software

# Causes that measured runs differ in most: who waits for whom isn't in a layout.
_WAITING = (
    "tensor_communication",
    "context_communication",
    "expert_communication",
    "pipeline_communication",
    "data_communication",
    "pipeline_bubble",
    "launch_floor",
    "offload",
)
_EXTRAPOLATION_WIDTH = 1.3
_LARGEST_WIDTH = 3.0
# The machine's own rates are known; its software's habits and its network are not.
_CALIBRATED_WIDTH = 0.7


def step_interval(parts: dict[str, float], shape: TransformerShape, rates: Rates, extrapolated: int) -> Interval:
    """Return the 80% interval around a step time.

    Its ends are quantiles of published runs' log residuals with their publisher left out of the fit, each
    publisher weighing the same and each residual divided by :func:`relative_width` (split-conformal with
    normalized scores: Lei et al. 2018, arXiv:1604.04173, section 5.2; weights: Tibshirani et al. 2019,
    arXiv:1904.06019).

    Args:
        parts: seconds of the step by cause.
        shape: the model.
        rates: of the device; rates measured on the machine narrow the interval.
        extrapolated: dimensions outside the calibrated range; each widens the interval.
    """
    constants = rates.constants
    factor = relative_width(parts, shape, constants, extrapolated)
    if rates.calibrated:
        factor *= _CALIBRATED_WIDTH
    mid = sum(parts.values())
    return Interval(mid * math.exp(constants.log_low * factor), mid, mid * math.exp(constants.log_high * factor))


def relative_width(
    parts: dict[str, float], shape: TransformerShape, constants: RuntimeConstants, extrapolated: int
) -> float:
    """Return how wide the interval is against that of a calibrated step that only computes, with dense layers."""
    waiting = sum(parts.get(name, 0.0) for name in _WAITING) / sum(parts.values())
    factor = 1.0 + constants.waiting_width * waiting
    if any(block.mlp.experts for block, _ in shape.block_counts):
        factor *= constants.expert_width
    return factor * float(min(_EXTRAPOLATION_WIDTH**extrapolated, _LARGEST_WIDTH))


def extrapolated_dimensions(
    shape: TransformerShape, layout: TrainingLayout, device: Device, rates: Rates, links: Links, software: str | None
) -> tuple[str, ...]:
    """Return in words what lies outside the runs that the constants were fitted on."""
    seen = runtime_table()["calibrated_range"]
    found = []
    generation = generation_of(device)
    if not rates.calibrated:
        if generation not in seen["generations"]:
            found.append(f"device: no fitted run on {device.name} or another of its generation")
        elif rates.is_narrow and generation not in seen["narrow_generations"]:
            found.append(f"precision: no fitted run with such narrow products on the generation of {device.name}")
        found += [f"device figures: {device.name} is taken to have {words}" for words in rates.assumed]
        found += [f"topology: {device.name} is taken to have {words}" for words in links.topology.assumed]
    if layout.precision not in seen["precisions"] and not rates.calibrated:
        found.append(f"precision: no fitted run in {layout.precision}")
    for name, value in (
        ("num_params", shape.num_params),
        ("hidden", shape.hidden),
        ("seq_len", layout.seq_len),
        ("num_devices", layout.num_devices),
    ):
        low, high = seen[name]
        if not low <= value <= high:
            found.append(f"{name}: {value:,} lies outside the fitted {low:,} to {high:,}")
    if layout.mode != "train":
        found.append(f"mode: the constants were fitted on training, not on {layout.mode!r}")
    if layout.offload != "none":
        found.append("offload: no fitted run offloads to the CPU")
    if layout.quantized_base:
        found.append("quantized_base: few fitted runs train on 4-bit weights")
    if layout.optimizer not in seen["optimizers"]:
        found.append(f"optimizer: no fitted run with {layout.optimizer}")
    if software is not None and read_software(software).family not in seen["software"]:
        found.append(f"software: {software!r} is none of the fitted families; their average is taken")
    return tuple(found)
