"""How sure a step time is: an 80% interval, and what lies outside the runs that the constants were fitted on."""

from __future__ import annotations

import math
from typing import Any

from ...core.interval import Interval
from ...hardware.devices import Device
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_shape import TransformerShape
from .device_peaks import generation_of
from .links import Links
from .rates import Rates
from .runtime_constants import runtime_table
from .software import read_software


def step_interval(mid: float, extrapolated: int, *, calibrated: bool, table: dict[str, Any] | None = None) -> Interval:
    """Return the 80% interval around a step time.

    Its ends are quantiles of published runs' log residuals with their publisher left out of the fit, each
    publisher weighing the same (split-conformal: Lei et al. 2018, arXiv:1604.04173; grouped and weighted as
    Tibshirani et al. 2019, arXiv:1904.06019, allow).

    Args:
        mid: the estimate.
        extrapolated: dimensions outside the calibrated range; each widens the interval.
        calibrated: rates were measured on the machine, which narrows it.
        table: the data file's ``[interval]``; None: that which ships with the package.
    """
    table = table or runtime_table()["interval"]
    factor = min(table["extrapolation_factor"] ** extrapolated, table["largest_factor"])
    if calibrated:
        factor *= table["calibrated_factor"]
    return Interval(mid * math.exp(table["log_low"] * factor), mid, mid * math.exp(table["log_high"] * factor))


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
        elif rates.is_narrow and generation not in seen["fp8_generations"]:
            found.append(f"precision: no fitted run in 8 bits on the generation of {device.name}")
        found += [f"device figures: {device.name} is taken to have {words}" for words in rates.assumed]
        found += [f"topology: {device.name} is taken to have {words}" for words in links.topology.assumed]
    if layout.precision in ("fp32", "fp4-mixed") and not rates.calibrated:
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
