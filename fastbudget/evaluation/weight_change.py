"""How much the weights of two models differ, and from which layer on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..core.errors import InvalidInputError, one_of

# Numbers per block: both blocks and their difference stay in the cache, so memory is read once.
_BLOCK = 128 * 1024


@dataclass(frozen=True, kw_only=True)
class ChangeScore:
    """Relative change of weights, ‖b − a‖ / ‖a‖ with Euclidean norms; infinite where a is all zero and b isn't.

    Integer tensors count for equality only.

    Attributes:
        relative_change: Over all tensors together.
        by_layer: By the module that holds the tensors, in the model's order.
        by_tensor: By name.
        identical: Whether all are equal bit for bit.
        unchanged_layers: Layers equal bit for bit.
        first_changed_layer: In the model's order; None if nothing changed.
    """

    relative_change: float
    by_layer: dict[str, float]
    by_tensor: dict[str, float]
    identical: bool
    unchanged_layers: tuple[str, ...]
    first_changed_layer: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a number that isn't finite as None."""
        fields = asdict(self)
        for name in ("by_layer", "by_tensor"):
            fields[name] = {key: _finite(value) for key, value in fields[name].items()}
        return fields | {"relative_change": _finite(self.relative_change)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(slots=True)
class _Sums:
    """Sums of squares of a tensor or layer."""

    before: float = 0.0
    difference: float = 0.0
    identical: bool = True

    def add(self, other: _Sums) -> None:
        self.before += other.before
        self.difference += other.difference
        self.identical &= other.identical

    @property
    def relative(self) -> float:
        if self.before > 0 or math.isnan(self.before):
            return math.sqrt(self.difference / self.before)
        return math.inf if self.difference else 0.0


def change_score(
    model_a: torch.nn.Module | Mapping[str, torch.Tensor], model_b: torch.nn.Module | Mapping[str, torch.Tensor]
) -> ChangeScore:
    """Compare the weights and buffers of two models, in one pass over both.

    Args:
        model_a: The earlier model, or its state dict.
        model_b: The later one. Both may lie on any device and in any dtype; tensors are compared as float32 (float64
            as float64).

    Raises:
        InvalidInputError: the models differ in the names or shapes of their tensors.
    """
    tensors_a, tensors_b = dict(_tensors(model_a)), dict(_tensors(model_b))
    if tensors_a.keys() != tensors_b.keys():
        raise InvalidInputError(
            "change_score compares models of one architecture; only one of the two has "
            f"{one_of(sorted(tensors_a.keys() ^ tensors_b.keys())[:5])}."
        )
    by_tensor: dict[str, float] = {}
    layers: dict[str, _Sums] = {}
    total = _Sums()
    for name, a in tensors_a.items():
        sums = _compare(name, a, tensors_b[name])
        by_tensor[name] = sums.relative
        layers.setdefault(name.rpartition(".")[0], _Sums()).add(sums)
        total.add(sums)
    return ChangeScore(
        relative_change=total.relative,
        by_layer={name: sums.relative for name, sums in layers.items()},
        by_tensor=by_tensor,
        identical=total.identical,
        unchanged_layers=tuple(name for name, sums in layers.items() if sums.identical),
        first_changed_layer=next((name for name, sums in layers.items() if not sums.identical), None),
    )


def _tensors(model: torch.nn.Module | Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(model, torch.nn.Module):
        yield from model.named_parameters()
        yield from model.named_buffers()
        return
    for name, value in model.items():
        if isinstance(value, torch.Tensor):
            yield name, value


def _compare(name: str, a: torch.Tensor, b: torch.Tensor) -> _Sums:
    if a.shape != b.shape:
        raise InvalidInputError(
            f"change_score compares models of one architecture; {name!r} has shape {list(a.shape)} in one and "
            f"{list(b.shape)} in the other."
        )
    a, b = a.detach(), b.detach()
    if a.device != b.device:
        b = b.to(a.device)
    same_dtype = a.dtype == b.dtype
    exact = torch.float64 if torch.float64 in (a.dtype, b.dtype) else torch.float32
    # Counters, such as batch norm's number of batches, are no weights and would drown them.
    counted = a.is_floating_point() or a.is_complex()
    sums = _Sums()
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    # A GPU reads a tensor at once; its kernels would otherwise cost more than the memory.
    block = _BLOCK if a.device.type == "cpu" else max(1, flat_a.numel())
    for start in range(0, flat_a.numel(), block):
        part_a, part_b = flat_a[start : start + block], flat_b[start : start + block]
        if part_a.is_complex():
            part_a, part_b = torch.view_as_real(part_a).reshape(-1), torch.view_as_real(part_b).reshape(-1)
        if not counted:
            sums.identical &= same_dtype and _same_bits(part_a, part_b)
            continue
        numbers = part_a.to(exact)
        sums.before += float(torch.dot(numbers, numbers))
        if same_dtype and _same_bits(part_a, part_b):
            continue
        sums.identical = False
        difference = part_b.to(exact) - numbers
        sums.difference += float(torch.dot(difference, difference))
    return sums


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    # -0.0 equals 0.0 and NaN nothing, so numbers won't do.
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(a.element_size(), torch.uint8)
    return torch.equal(a.view(whole), b.view(whole))
