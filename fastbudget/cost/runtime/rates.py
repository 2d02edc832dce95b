"""Achievable rates of a device, and the seconds of single operations at them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from ...core.errors import InvalidInputError
from ...hardware.devices import Device
from .calibration import Calibration
from .device_peaks import Peak, find_peak, generation_of, release_year
from .runtime_constants import RuntimeConstants, default_constants
from .software import (
    FUSING_FAMILIES,
    GRAPH_FAMILIES,
    NATIVE_ATTENTION_FAMILIES,
    TUNED_FAMILIES,
    Software,
    read_software,
)
from .topology import topology_of

# Ratio of arithmetic to bandwidth at which the half-rate sizes of the constants hold: the A100's.
_REFERENCE_INTENSITY = 312e12 / 2.0e12
_UNKNOWN_BANDWIDTH_INTENSITY = 200.0
# Products of few rows run in tiles of this height, at this share of the rate, whatever the multiprocessors.
_TILE_ROWS = 64
_THIN_ROWS = 256
_THIN_SHARE = 0.5
# Height and width of a tile of the result, and the share of the rate that tiles of this size reach.
_TILES = ((256, 128, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.6), (16, 128, 0.25))
_KINDS = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "fp16-mixed": "fp16",
    "fp8-mixed": "fp8",
    "fp4-mixed": "fp4",
}
# Generations whose matrix units need other instructions than the A100's: kernels written for that run, but slowly.
# FlashAttention-3 (arXiv:2407.08608): FlashAttention-2 reaches 35% of an H100's peak, kernels for it 75%.
_NEW_UNITS = ("hopper", "blackwell", "cdna3", "cdna4")
_USUAL_AGE = 1.5
# Transformer Engine, overlapped tensor parallelism.
_TUNED_SINCE = 2023.0
# A launch from a graph or from C against one from Python.
_GRAPH_LAUNCH = 0.25


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device does in training, for one precision and one software.

    Attributes:
        matrix_flops_per_s: of a large matrix product.
        attention_flops_per_s: of fused attention with large heads over long sequences.
        peak_flops_per_s: the datasheet's dense peak for that precision: what MFU and HFU are shares of.
        memory_bytes_per_s: of memory-bound operations.
        launch_s: seconds from one launch to the next where the device waits for the host.
        element_bytes: bytes of an element of a matrix product's inputs.
        step_s: what a step takes beside: the loop, logging, data loading, synchronization.
        tensor_overlap: share of tensor-parallel communication that is hidden.
        size_scale: factor on the half-rate sizes: the more arithmetic per byte, the larger.
        multiprocessors: units that take one tile each; None: not known.
        constants: the constants used.
        assumed: words for each figure that no datasheet gave.
        family: the software's family; None: not known.
        calibrated: measured on this machine, not fitted on published runs.
    """

    matrix_flops_per_s: float
    attention_flops_per_s: float
    peak_flops_per_s: float
    memory_bytes_per_s: float
    launch_s: float
    element_bytes: float
    step_s: float
    tensor_overlap: float
    size_scale: float
    multiprocessors: int | None
    constants: RuntimeConstants
    assumed: tuple[str, ...] = ()
    family: str | None = None
    calibrated: bool = False

    @property
    def fuses(self) -> bool:
        """Whether the software fuses norms, activation functions and the like by itself."""
        return self.family in FUSING_FAMILIES

    @property
    def is_narrow(self) -> bool:
        """Whether products take inputs of 8 bits or fewer, which have to be cast and scaled."""
        return self.element_bytes == 1.0


def achievable_rates(
    device: Device,
    precision: str = "bf16-mixed",
    *,
    software: str | None = None,
    calibration: Calibration | None = None,
    constants: RuntimeConstants | None = None,
) -> Rates:
    """Return what a device achieves in training.

    Args:
        device: the accelerator.
        precision: one of the layout's; ``"fp8-mixed"`` and ``"fp4-mixed"`` take the narrow peak for matrix
            products only.
        software: what trains, free-form, with a year or version if known; None: the average.
        calibration: measured rates, which take the place of the fitted ones.
        constants: None: those that ship with the package.

    Raises:
        InvalidInputError: the calibration is another device's, or the device has no peak at all.
    """
    if calibration is not None and calibration.device != device.key:
        raise InvalidInputError(
            f"calibration must be measured on {device.key}, got one of {calibration.device}. "
            "Run `fastbudget calibrate` on the machine that will train."
        )
    fitted = _fitted_rates(device, precision, read_software(software), constants or default_constants())
    return fitted if calibration is None else _measured_rates(fitted, precision, calibration)


def gemm_seconds(m: int, n: int, k: int, rates: Rates) -> float:
    """Return the seconds of a matrix product [m, k] x [k, n], without its launch.

    Three effects keep small products from the full rate: the device's last wave of output tiles is not full, the
    summed dimension is too short to hide the start and end of a tile, and operands have to come from memory.
    """
    if not (m and n and k):
        return 0.0
    constants = rates.constants
    share = _saturation(k, constants.half_depth * rates.size_scale)
    rows = _TILE_ROWS * math.ceil(m / _TILE_ROWS)
    wide = _saturation(rows, constants.half_rows * rates.size_scale)
    wide *= _saturation(n, constants.half_columns * rates.size_scale)
    wide *= _tiling(m, n, rates.multiprocessors, constants.wave_loss)
    if m <= _THIN_ROWS:
        # Few rows: sums are split over all multiprocessors, and memory is what such a product waits for.
        wide = max(wide, _THIN_SHARE * m / rows)
    share *= wide
    arithmetic = 2.0 * m * n * k / (rates.matrix_flops_per_s * share)
    moved = rates.element_bytes * (m * k + k * n) + 2.0 * m * n
    return max(arithmetic, moved / rates.memory_bytes_per_s)


def attention_seconds(
    tokens: int,
    seen: float,
    heads: int,
    head_dim: int,
    value_dim: int,
    rates: Rates,
    *,
    unfused_keys: int | None = None,
) -> float:
    """Return the seconds of attention's forward pass, without projections and launches.

    Args:
        tokens: queries, over all sequences.
        seen: keys a query sees on average: half the sequence under causal attention.
        heads: query heads on this device.
        head_dim: size of a query or key head.
        value_dim: size of a value head.
        rates: of the device.
        unfused_keys: without FlashAttention, the keys of a sequence: scores of all of them, masked ones too, are
            computed, written to memory and read back.
    """
    constants = rates.constants
    if unfused_keys is None:
        flops = 2.0 * tokens * seen * heads * (head_dim + value_dim)
        share = _saturation(head_dim, constants.half_head) * _saturation(seen, constants.half_seen)
        return flops / (rates.attention_flops_per_s * share)
    flops = 2.0 * tokens * unfused_keys * heads * (head_dim + value_dim)
    products = flops / (rates.matrix_flops_per_s * _saturation(head_dim, constants.half_depth * rates.size_scale))
    scores = 2.0 * tokens * unfused_keys * heads
    return products + memory_seconds(scores * constants.score_passes, rates)


def memory_seconds(moved_bytes: float, rates: Rates) -> float:
    """Return the seconds of memory-bound operations that read and write so many bytes, without launches."""
    return moved_bytes / rates.memory_bytes_per_s


def _saturation(size: float, half: float) -> float:
    """Share of the full rate: a half at `half`, one at infinity."""
    return size / (size + half)


@lru_cache(maxsize=65536)
def _tiling(m: int, n: int, multiprocessors: int | None, wave_loss: float) -> float:
    """Share of the multiprocessors' time that goes into tiles of the result, with the best size of tiles."""
    if multiprocessors is None:
        return 1.0
    best = 0.0
    for height, width, efficiency in _TILES:
        tiles = math.ceil(m / height) * math.ceil(n / width)
        padded = m * n / (tiles * height * width)
        waves = tiles / multiprocessors
        # Splitting the sum (split-K, stream-K) fills a part of the last wave.
        taken = waves + wave_loss * (math.ceil(waves) - waves)
        best = max(best, efficiency * padded * waves / taken)
    return best


def _fitted_rates(device: Device, precision: str, software: Software, constants: RuntimeConstants) -> Rates:
    generation, family = generation_of(device), software.family
    kind = _KINDS.get(precision, "bf16")
    wide = find_peak(device, "bf16" if kind in ("fp8", "fp4") else kind)
    narrow = find_peak(device, kind) if kind in ("fp8", "fp4") else None
    shift = constants.generation_shift.get(generation or "", 0.0)
    shift += constants.software_shift.get(family or "", 0.0)
    shift += constants.maturity * (_age(generation, software) - _USUAL_AGE)
    speed = math.exp(shift)
    sustained = _sustained(wide, constants) * speed
    matrix = sustained
    if narrow is not None:
        matrix = max(_sustained(narrow, constants) * constants.narrow_share * speed, matrix)
    attention = sustained * constants.attention_share
    if generation in _NEW_UNITS and family not in NATIVE_ATTENTION_FAMILIES:
        attention *= constants.ported_attention
    assumed = narrow.assumed if narrow is not None else wide.assumed
    bandwidth = device.memory_bytes_per_s
    if bandwidth is None:
        bandwidth = wide.flops_per_s / _UNKNOWN_BANDWIDTH_INTENSITY
        assumed = (*assumed, f"a memory bandwidth of {bandwidth / 1e12:.1f} TB/s")
    host = _GRAPH_LAUNCH if family in GRAPH_FAMILIES else 1.0
    return Rates(
        matrix_flops_per_s=matrix,
        attention_flops_per_s=attention,
        peak_flops_per_s=(narrow or wide).flops_per_s,
        memory_bytes_per_s=bandwidth * constants.bandwidth_share,
        launch_s=constants.launch_s * host,
        step_s=constants.step_s * host,
        tensor_overlap=constants.tensor_overlap * _tuned(software),
        element_bytes=1.0 if narrow is not None else 4.0 if kind in ("fp32", "tf32") else 2.0,
        size_scale=wide.flops_per_s / bandwidth / _REFERENCE_INTENSITY,
        multiprocessors=topology_of(device).multiprocessors,
        constants=constants,
        assumed=assumed,
        family=family,
    )


def _measured_rates(fitted: Rates, precision: str, calibration: Calibration) -> Rates:
    """Put measured rates in the place of fitted ones; what wasn't measured stays."""
    # What a product does by itself, and less in training, as with published measurements.
    share = fitted.constants.measured_share
    measured = calibration.matrix_flops_per_s.get(precision.removesuffix("-mixed"))
    matrix = None if measured is None else measured * share
    attention = None if calibration.attention_flops_per_s is None else calibration.attention_flops_per_s * share
    if matrix is not None and attention is None:
        attention = fitted.attention_flops_per_s * matrix / fitted.matrix_flops_per_s
    return replace(
        fitted,
        matrix_flops_per_s=matrix or fitted.matrix_flops_per_s,
        attention_flops_per_s=attention or fitted.attention_flops_per_s,
        memory_bytes_per_s=calibration.memory_bytes_per_s or fitted.memory_bytes_per_s,
        launch_s=calibration.launch_s or fitted.launch_s,
        calibrated=matrix is not None,
    )


def _sustained(peak: Peak, constants: RuntimeConstants) -> float:
    if peak.measured_share is None:
        return constants.peak_share * peak.flops_per_s
    return constants.measured_share * peak.measured_share * peak.flops_per_s


def _tuned(software: Software) -> float:
    """Return whether the software is tuned for its devices; a half where it isn't known."""
    if software.year is not None and software.year < _TUNED_SINCE:
        return 0.0
    return 0.5 if software.family is None else 1.0 if software.family in TUNED_FAMILIES else 0.0


def _age(generation: str | None, software: Software) -> float:
    """Years that software had to adapt to the generation, at most three."""
    released = release_year(generation)
    if released is None or software.year is None:
        return _USUAL_AGE
    return min(max(software.year - released, 0.0), 3.0)
