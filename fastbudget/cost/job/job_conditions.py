"""Under which conditions a job runs: what a device costs, how often it fails, what power it draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any

from ...core.errors import InvalidInputError

# Figures that may be 0; the others must be above.
_MAY_BE_ZERO = ("startup_s", "warmup_s", "restart_s", "host_share", "grid_kg_per_kwh")


@dataclass(frozen=True, kw_only=True)
class JobConditions:
    """Where and how a job runs. None: the stated default with its interval. Checked on construction.

    Attributes:
        price: USD of one device for an hour, a provider's name or a file of prices (see ``read_prices``);
            None: the median of the price table.
        spot_price: the same for spot devices; a number only.
        spot: the job runs on spot devices, which may be taken away.
        whole_nodes: all devices of a node are paid for, also those that the job leaves idle.
        devices_per_node: devices of a node.
        device_hours_between_failures: device-hours per interruption by a fault.
        spot_hours_between_interruptions: hours until a spot node is taken away.
        startup_s: from the job's begin to the first step: containers, data, weights, communicators.
        warmup_s: compiling and the slow first steps.
        restart_s: from an interruption to the next step: noticing, replacing devices, loading the checkpoint.
        power_share: device power as a share of its power limit while training.
        host_share: power of CPUs, memory, network and fans as a share of the devices'.
        pue: power of the data center over that of its machines.
        region: whose electricity, a name of the table of grids.
        grid_kg_per_kwh: CO2e of a kilowatt-hour, instead of a region's.
    """

    price: float | str | PathLike[str] | None = None
    spot_price: float | None = None
    spot: bool = False
    whole_nodes: bool = False
    devices_per_node: int = 8
    device_hours_between_failures: float | None = None
    spot_hours_between_interruptions: float | None = None
    startup_s: float | None = None
    warmup_s: float | None = None
    restart_s: float | None = None
    power_share: float | None = None
    host_share: float | None = None
    pue: float | None = None
    region: str = "world"
    grid_kg_per_kwh: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("spot", "whole_nodes", "region") or value is None or isinstance(value, str | PathLike):
                continue
            _check(field.name, value)
        if isinstance(self.devices_per_node, float) or self.devices_per_node < 1:
            raise InvalidInputError(
                f"devices_per_node must be an integer of at least 1, got {self.devices_per_node!r}."
            )
        if self.power_share is not None and self.power_share > 1.2:
            raise InvalidInputError(
                f"power_share is a share of the power limit, such as 0.8; got {self.power_share!r}."
            )
        if self.pue is not None and self.pue < 1:
            raise InvalidInputError(f"pue is at least 1 (1.1 for a hyperscale data center), got {self.pue!r}.")


def _check(name: str, value: Any) -> None:
    least = "of at least 0" if name in _MAY_BE_ZERO else "above 0"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInputError(f"{name} must be a finite number {least}, got {value!r}.")
    if value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
        raise InvalidInputError(f"{name} must be a number {least}, got {value!r}.")
