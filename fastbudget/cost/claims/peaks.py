"""The peaks that people divide by, right and wrong."""

from __future__ import annotations

from collections.abc import Iterator

from ...hardware.devices import Device, find_device

# How far a stated or implied peak may be from one of the table and still mean it.
_SAME = 0.06
_KINDS = {"fp32": "float32", "tf32": "TF32", "fp16": "fp16", "bf16": "bf16", "fp8": "FP8", "fp4": "FP4"}
# Peaks that programs fall back to when they don't know the device.
_FALLBACKS = ("a100-sxm-80gb", "h100-sxm", "v100-sxm-32gb")
# Structured 2:4 sparsity came with this compute capability.
_FIRST_SPARSE = 8.0


def dense_peak(device: Device, precision: str | None) -> tuple[float | None, str]:
    """Return the dense peak for a precision and the precision's name; bf16 where none is said."""
    kind = precision or ("bf16" if device.bf16_flops_per_s else "fp16")
    peak: float | None = getattr(device, f"{kind}_flops_per_s")
    return peak, _KINDS[kind]


def name_of_peak(value: float, device: Device, precision: str | None, *, tolerance: float = _SAME) -> str | None:
    """Return whose peak a figure is, the wrong ones in words, or None when no known peak is near.

    The right peak, dense and of the precision, is named first if it is near.
    """
    for peak, words in _known_peaks(device, precision):
        if abs(value - peak) <= tolerance * peak:
            return words
    return None


def is_right_peak(value: float, device: Device, precision: str | None, *, tolerance: float = _SAME) -> bool:
    """Return whether a figure is the dense peak of the device for the precision."""
    peak, _ = dense_peak(device, precision)
    return peak is not None and abs(value - peak) <= tolerance * peak


def _known_peaks(device: Device, precision: str | None) -> Iterator[tuple[float, str]]:
    right, name = dense_peak(device, precision)
    if right is not None:
        yield right, f"the dense {name} peak"
        if _is_sparse(device):
            yield (
                2 * right,
                f"twice the dense {name} peak: the figure with 2:4 sparsity, which dense training never has",
            )
    for kind, words in _KINDS.items():
        peak = getattr(device, f"{kind}_flops_per_s")
        if peak is not None and words != name:
            yield peak, f"the {words} peak, not the {name} one"
            if _is_sparse(device) and kind != "fp32":
                yield 2 * peak, f"the {words} peak with 2:4 sparsity, not the dense {name} one"
    for other in _FALLBACKS:
        fallback = find_device(other)
        peak = fallback.bf16_flops_per_s or fallback.fp16_flops_per_s
        if peak is not None and fallback.key != device.key:
            yield peak, f"the 16-bit peak of {fallback.name}, another device"


def _is_sparse(device: Device) -> bool:
    try:
        return float(device.architecture or "") >= _FIRST_SPARSE
    except ValueError:  # AMD's architectures are no numbers
        return device.architecture in ("gfx942", "gfx950")
