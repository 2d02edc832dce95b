"""What a claim about a training run says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any

from ...core.errors import InvalidInputError, did_you_mean
from ...hardware.devices import Device, find_device
from ..transformer.transformer_shape import TransformerShape

PRECISIONS = ("bf16", "fp16", "fp8", "fp4", "tf32", "fp32")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The figures of a claim; None: not said. Rates and memory are of one device where the name says so.

    Attributes:
        config: the model, as :func:`read_transformer` takes it.
        params: its parameters, where only those are said.
        active_params: those that a token passes through, in a mixture of experts.
        device: what it runs on.
        num_devices: how many.
        precision: one of ``PRECISIONS``; None: 16 bits.
        seq_len: tokens of a sequence.
        global_batch_size: sequences of an optimizer step.
        tokens_per_step: tokens of an optimizer step.
        step_time_s: seconds of one.
        tokens_per_s: over all devices.
        tokens_per_s_per_device: of one.
        tokens_per_s_unlabeled: the claim doesn't say which of the two.
        mfu: model FLOPs utilization, 1 is 100%.
        hfu: hardware FLOPs utilization.
        flops_per_s_per_device: rate of one device.
        flops_per_s: over all devices.
        flops_per_s_unlabeled: the claim doesn't say which of the two.
        peak_flops_per_s: what the claim takes for a device's peak.
        total_tokens: of the whole run.
        total_flops: likewise.
        steps: optimizer steps of the whole run.
        wall_s: its seconds.
        gpu_hours: its device-hours.
        cost_usd: its price.
        usd_per_device_hour: of a device.
        memory_bytes: peak memory.
        memory_is_per_device: the claim says so.
        lora: adapters are trained.
        quantized: the frozen weights are in 4 or 8 bits.
        offloads: states are on the host.
    """

    config: str | PathLike[str] | Mapping[str, Any] | TransformerShape | None = None
    params: float | None = None
    active_params: float | None = None
    device: Device | None = None
    num_devices: int | None = None
    precision: str | None = None
    seq_len: int | None = None
    global_batch_size: float | None = None
    tokens_per_step: float | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    tokens_per_s_unlabeled: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    flops_per_s_per_device: float | None = None
    flops_per_s: float | None = None
    flops_per_s_unlabeled: float | None = None
    peak_flops_per_s: float | None = None
    total_tokens: float | None = None
    total_flops: float | None = None
    steps: float | None = None
    wall_s: float | None = None
    gpu_hours: float | None = None
    cost_usd: float | None = None
    usd_per_device_hour: float | None = None
    memory_bytes: float | None = None
    memory_is_per_device: bool = False
    lora: bool = False
    quantized: bool = False
    offloads: bool = False

    def __post_init__(self) -> None:
        if self.precision is not None and self.precision not in PRECISIONS:
            raise InvalidInputError(
                f"A claim's precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}."
            )
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
                raise InvalidInputError(f"A claim's {name} must be a finite number above 0, got {value!r}.")

    @property
    def batch_tokens(self) -> float | None:
        """Tokens of an optimizer step, said or multiplied."""
        if self.tokens_per_step is not None:
            return self.tokens_per_step
        if self.global_batch_size is None or self.seq_len is None:
            return None
        return self.global_batch_size * self.seq_len


_NUMBERS = tuple(
    field.name
    for field in fields(Claim)
    if field.name not in ("config", "device", "precision", "memory_is_per_device", "lora", "quantized", "offloads")
)


def with_fields(claim: Claim, given: Mapping[str, Any]) -> Claim:
    """Return the claim with fields by name; ``hardware`` and ``model`` name the device and the model.

    Raises:
        InvalidInputError: there is no such field, or a value makes no sense.
    """
    values = dict(given)
    for other, name in (("hardware", "device"), ("model", "config")):
        if other in values:
            values[name] = values.pop(other)
    known = [field.name for field in fields(Claim)]
    for name in values:
        if name not in known:
            raise InvalidInputError(f"A claim has no field {name!r}.{did_you_mean(name, known)}")
    if isinstance(values.get("device"), str):
        values["device"] = find_device(values["device"])
    return replace(claim, **values)
