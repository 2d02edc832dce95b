"""Achievable rates of a device, and the seconds of single operations at them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from os.path import commonprefix

from ...core.errors import InvalidInputError
from ...hardware.devices import Device, known_devices
from .calibration import Calibration
from .runtime_constants import RuntimeConstants, default_constants
from .software import Software, read_software
from .topology import topology_of

# Ratio of arithmetic to bandwidth at which the half-rate sizes of the constants hold: the A100's.
_REFERENCE_INTENSITY = 312e12 / 2.0e12
_UNKNOWN_BANDWIDTH_INTENSITY = 200.0
_TILES = ((256, 128, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.6), (16, 128, 0.25))
# Release years: how long software could adapt to a generation.
_GENERATIONS = {
    "volta": 2017.5, "turing": 2018.8, "ampere": 2020.4, "ampere-workstation": 2020.9, "ada": 2022.8, "hopper": 2022.9,
    "blackwell": 2024.9, "blackwell-workstation": 2025.1, "cdna2": 2021.9, "cdna3": 2023.9, "cdna4": 2025.5,
    "gaudi": 2022.5, "tpu": 2021.0,
}  # fmt: skip
_ARCHITECTURES = {
    "7.0": "volta", "7.5": "turing", "8.0": "ampere", "8.6": "ampere-workstation", "8.9": "ada", "9.0": "hopper",
    "10.0": "blackwell", "10.3": "blackwell", "12.0": "blackwell-workstation", "gfx90a": "cdna2", "gfx942": "cdna3",
    "gfx950": "cdna4",
}  # fmt: skip


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
        size_scale: factor on the half-rate sizes: the more arithmetic per byte, the larger.
        multiprocessors: units that take one tile each; None: not known.
        constants: the constants used.
        assumed: words for each figure that no datasheet gave.
        calibrated: measured on this machine, not fitted on published runs.
    """

    matrix_flops_per_s: float
    attention_flops_per_s: float
    peak_flops_per_s: float
    memory_bytes_per_s: float
    launch_s: float
    element_bytes: int
    size_scale: float
    multiprocessors: int | None
    constants: RuntimeConstants
    assumed: tuple[str, ...] = ()
    calibrated: bool = False


def generation_of(device: Device) -> str | None:
    """Return a device's generation, such as ``"hopper"``; None: not one that is known."""
    if device.key.startswith("tpu"):
        return "tpu"
    if device.key.startswith("gaudi"):
        return "gaudi"
    return _ARCHITECTURES.get(device.architecture or "")


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
        precision: one of the layout's; ``"fp8-mixed"`` takes the 8-bit peak for matrix products only.
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
    share *= _saturation(m, constants.half_rows * rates.size_scale)
    share *= _saturation(n, constants.half_columns * rates.size_scale)
    share *= _tiling(m, n, rates.multiprocessors, constants.wave_loss)
    arithmetic = 2.0 * m * n * k / (rates.matrix_flops_per_s * share)
    moved = rates.element_bytes * (m * k + k * n) + 2.0 * m * n
    return max(arithmetic, moved / rates.memory_bytes_per_s)


def attention_seconds(
    tokens: int, seen: float, heads: int, head_dim: int, value_dim: int, rates: Rates, *, fused: bool = True
) -> float:
    """Return the seconds of attention's forward pass, without projections and launches.

    Args:
        tokens: queries, over all sequences.
        seen: keys a query sees on average: half the sequence under causal attention.
        heads: query heads on this device.
        head_dim: size of a query or key head.
        value_dim: size of a value head.
        rates: of the device.
        fused: FlashAttention; else scores are written to memory, masked ones too, and read back.
    """
    constants = rates.constants
    flops = 2.0 * tokens * seen * heads * (head_dim + value_dim)
    if fused:
        share = _saturation(head_dim, constants.half_head) * _saturation(seen, constants.half_seen)
        return flops / (rates.attention_flops_per_s * share)
    scores = 2.0 * tokens * seen * heads  # the masked half is computed too
    products = 2.0 * flops / (rates.matrix_flops_per_s * _saturation(head_dim, constants.half_depth * rates.size_scale))
    return products + memory_seconds(2.0 * scores * constants.score_passes, rates)


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
    assumed: list[str] = []
    narrow = precision == "fp8-mixed"
    kind = "fp32" if precision == "fp32" else "fp16" if precision.startswith("fp16") else "bf16"
    peak, measured = _peak(device, kind, assumed)
    if narrow:
        narrow_peak, narrow_measured = _peak(device, "fp8", assumed)
    sustained = _sustained(peak, measured, constants)
    generation = generation_of(device)
    shift = constants.generation_shift.get(generation or "", 0.0)
    shift += constants.software_shift.get(software.family or "", 0.0)
    shift += constants.maturity * (_age(generation, software) - 1.5)
    speed = math.exp(shift)
    matrix = sustained * speed
    if narrow:
        matrix = max(_sustained(narrow_peak, narrow_measured, constants) * constants.narrow_share * speed, matrix)
    bandwidth = device.memory_bytes_per_s
    if bandwidth is None:
        bandwidth = peak / _UNKNOWN_BANDWIDTH_INTENSITY
        assumed.append(f"a memory bandwidth of {bandwidth / 1e12:.1f} TB/s")
    return Rates(
        matrix_flops_per_s=matrix,
        attention_flops_per_s=sustained * speed * constants.attention_share,
        peak_flops_per_s=narrow_peak if narrow else peak,
        memory_bytes_per_s=bandwidth * constants.bandwidth_share,
        launch_s=constants.launch_s,
        element_bytes=1 if narrow else 4 if kind == "fp32" else 2,
        size_scale=peak / bandwidth / _REFERENCE_INTENSITY,
        multiprocessors=topology_of(device).multiprocessors,
        constants=constants,
        assumed=tuple(assumed),
    )


def _measured_rates(fitted: Rates, precision: str, calibration: Calibration) -> Rates:
    """Put measured rates in the place of fitted ones; what wasn't measured stays."""
    kind = precision.removesuffix("-mixed")
    matrix = calibration.matrix_flops_per_s.get(kind)
    attention = calibration.attention_flops_per_s
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


def _sustained(peak: float, measured: float | None, constants: RuntimeConstants) -> float:
    return constants.peak_share * peak if measured is None else constants.measured_share * measured


def _age(generation: str | None, software: Software) -> float:
    """Years that software had to adapt to the generation, at most three; 1.5 where unknown."""
    released = _GENERATIONS.get(generation or "")
    if released is None or software.year is None:
        return 1.5
    return min(max(software.year - released, 0.0), 3.0)


def _peak(device: Device, kind: str, assumed: list[str]) -> tuple[float, float | None]:
    """Return a device's peak and the fastest published product, from its closest relative where it has none."""
    peak = getattr(device, f"{kind}_flops_per_s")
    measured = getattr(device, f"measured_{kind}_flops_per_s", None)
    if peak is not None:
        return peak, measured
    relative = _relative(device, kind)
    if relative is not None:
        assumed.append(f"the {kind} peak of {relative.name}")
        return getattr(relative, f"{kind}_flops_per_s"), getattr(relative, f"measured_{kind}_flops_per_s", None)
    # An older device computes a wider type's product instead: bfloat16 in float16 or float32, 8 bits in 16.
    for other in {"bf16": ("fp16", "fp32"), "fp16": ("bf16", "fp32"), "fp8": ("bf16", "fp16"), "fp32": ("tf32",)}[kind]:
        peak = getattr(device, f"{other}_flops_per_s")
        if peak is not None:
            assumed.append(f"{kind} at its {other} peak")
            return peak, getattr(device, f"measured_{other}_flops_per_s", None)
    if kind == "fp32" and device.bf16_flops_per_s is not None:
        # Six passes in bfloat16 make a float32 product, as TPUs do.
        assumed.append("fp32 at a sixth of its bf16 peak")
        return device.bf16_flops_per_s / 6, None
    raise InvalidInputError(
        f"{device.name} has no known peak for {kind}, so its step time can't be estimated. "
        "Pass a Device with its peaks, or measure it with `fastbudget calibrate`."
    )


def _relative(device: Device, kind: str) -> Device | None:
    """Return the device of the same model with another memory or board: the longest common beginning of the key."""
    best, length = None, device.key.find("-")
    for other in known_devices() if device.architecture is not None and length > 0 else ():
        common = len(commonprefix([device.key, other.key]))
        has_peak = getattr(other, f"{kind}_flops_per_s") is not None
        if other.architecture == device.architecture and has_peak and common > length:
            best, length = other, common
    return best
