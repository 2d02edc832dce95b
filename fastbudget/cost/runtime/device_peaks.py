"""What datasheets and published measurements say about a device's products, with fallbacks where they say nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import InvalidInputError
from ...hardware.devices import Device, known_devices

# Architectures of one generation, and when it came out: how long software could adapt to it.
_GENERATIONS = {
    "volta": 2017.5,
    "turing": 2018.8,
    "ampere": 2020.4,
    "ampere-workstation": 2020.9,
    "ada": 2022.8,
    "hopper": 2022.9,
    "blackwell": 2024.9,
    "blackwell-workstation": 2025.1,
    "cdna2": 2021.9,
    "cdna3": 2023.9,
    "cdna4": 2025.5,
    "gaudi": 2022.5,
    "tpu": 2021.0,
}
_ARCHITECTURES = {
    "7.0": "volta",
    "7.5": "turing",
    "8.0": "ampere",
    "8.6": "ampere-workstation",
    "8.9": "ada",
    "9.0": "hopper",
    "10.0": "blackwell",
    "10.3": "blackwell",
    "12.0": "blackwell-workstation",
    "gfx90a": "cdna2",
    "gfx942": "cdna3",
    "gfx950": "cdna4",
}
# Rate against power per peak: of the A100, 0.93 on PCIe with 300 W against 400 W.
_POWER_EXPONENT = 0.25
# What an older device computes a type's products in.
_STAND_INS = {
    "fp4": ("fp8", "bf16", "fp16"),
    "fp8": ("bf16", "fp16"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("fp32",),
    "fp32": ("tf32",),
}


@dataclass(frozen=True, kw_only=True)
class Peak:
    """A device's dense rate for one type.

    Attributes:
        flops_per_s: the peak.
        measured_share: share of it that the fastest published product reached; None: nobody published one.
        assumed: words for what no datasheet gave.
    """

    flops_per_s: float
    measured_share: float | None
    assumed: tuple[str, ...] = ()


def generation_of(device: Device) -> str | None:
    """Return a device's generation, such as ``"hopper"``; None: not one that is known."""
    for name in ("tpu", "gaudi"):
        if device.key.startswith(name):
            return name
    return _ARCHITECTURES.get(device.architecture or "")


def release_year(generation: str | None) -> float | None:
    """Return the year that a generation came out in, with a fraction."""
    return _GENERATIONS.get(generation or "")


def find_peak(device: Device, kind: str) -> Peak:
    """Return a device's peak for a type: ``"fp32"``, ``"tf32"``, ``"fp16"``, ``"bf16"``, ``"fp8"``, ``"fp4"``.

    Where the table has none, its closest relative's or a wider type's is taken, and said.

    Raises:
        InvalidInputError: the device has no peak for any type.
    """
    own = _figure(device, kind)
    if own is not None:
        return Peak(flops_per_s=own, measured_share=_measured_share(device, kind, own))
    relative = _relative(device, kind)
    if relative is not None:
        peak = find_peak(relative, kind)
        share = peak.measured_share
        if share is not None:
            share *= _power_factor(device, relative, peak.flops_per_s, peak.flops_per_s)
        assumed = (f"the {kind} peak of {relative.name}",)
        return Peak(flops_per_s=peak.flops_per_s, measured_share=share, assumed=assumed)
    for other in _STAND_INS[kind]:
        found = _figure(device, other)
        if found is not None:
            share = _measured_share(device, other, found)
            return Peak(flops_per_s=found, measured_share=share, assumed=(f"{kind} at its {other} peak",))
    if device.bf16_flops_per_s is not None:
        # Six passes in bfloat16 make a float32 product, as TPUs do.
        return Peak(
            flops_per_s=device.bf16_flops_per_s / 6.0,
            measured_share=None,
            assumed=(f"{kind} at a sixth of its bf16 peak",),
        )
    raise InvalidInputError(
        f"{device.name} has no known peak for {kind}, so its step time can't be estimated. "
        "Pass a Device with its peaks, or measure it with `fastbudget calibrate`."
    )


def _figure(device: Device, kind: str) -> float | None:
    return getattr(device, f"{kind}_flops_per_s", None)


def _measured_share(device: Device, kind: str, peak: float) -> float | None:
    """Share of the peak of the fastest published product: for the type, another type, another board of its kind."""
    if kind == "fp32":
        return None  # on vector units, whose products were not published
    measured = _figure(device, f"measured_{kind}") or None
    if measured is not None:
        return measured / peak
    own = _best_share(device)
    if own is not None:
        return own
    relatives = [
        share * _power_factor(device, other, peak, _figure(other, kind) or peak)
        for other in known_devices()
        if device.architecture is not None
        and other.architecture == device.architecture
        and (share := _best_share(other)) is not None
    ]
    return max(relatives, default=None)


def _best_share(device: Device) -> float | None:
    """Share of the peak in 16 bits, else in 8."""
    for kind in ("bf16", "fp8"):
        measured, peak = _figure(device, f"measured_{kind}"), _figure(device, kind)
        if measured is not None and peak is not None:
            return measured / peak
    return None


def _power_factor(device: Device, other: Device, peak: float, other_peak: float) -> float:
    """How much slower a device runs than another of its architecture for having less power for its peak."""
    if device.tdp_w is None or other.tdp_w is None:
        return 1.0
    return min((device.tdp_w / peak) / (other.tdp_w / other_peak), 1.0) ** _POWER_EXPONENT


def _relative(device: Device, kind: str) -> Device | None:
    """Return the device that this one is a variant of, by its key: ``h100-sxm`` for ``h100-sxm-96gb``."""
    relatives = [
        other
        for other in known_devices()
        if device.key.startswith(f"{other.key}-") and _figure(other, kind) is not None
    ]
    return max(relatives, key=lambda other: len(other.key), default=None)
