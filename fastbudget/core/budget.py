"""The budget: a value saying what may be spent. Spending is the business of the `budget` room."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import InvalidInputError

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class BudgetInSeconds:
    """A budget expressed as wall seconds for one run, with the limit that set it."""

    seconds: float
    ruling_limit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What may be spent; the tightest limit rules. At least one limit is required.

    Args:
        gpu_hours: Device-hours: wall hours times devices held, busy or not. A CPU process holds one device.
        wall_hours: Hours on the clock.
        usd: Money; needs ``usd_per_device_hour``.
        usd_per_device_hour: Price of holding one device for an hour.

    Raises:
        InvalidInputError: no limit, a limit that is not a positive finite number, or ``usd`` without a price.
    """

    gpu_hours: float | None = None
    wall_hours: float | None = None
    usd: float | None = None
    usd_per_device_hour: float | None = None

    def __post_init__(self) -> None:
        for name in ("gpu_hours", "wall_hours", "usd", "usd_per_device_hour"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidInputError(f"Budget: {name} must be a number, got {value!r}.")
            if not math.isfinite(value) or value <= 0:
                raise InvalidInputError(f"Budget: {name} must be a finite number above 0, got {value!r}.")
        if self.gpu_hours is None and self.wall_hours is None and self.usd is None:
            raise InvalidInputError("Budget: give at least one limit: gpu_hours, wall_hours or usd.")
        if self.usd is not None and self.usd_per_device_hour is None:
            raise InvalidInputError(
                "Budget: usd needs usd_per_device_hour, the price of one device for an hour; give it, "
                "or use gpu_hours or wall_hours."
            )

    def in_seconds(self, num_devices: int = 1) -> BudgetInSeconds:
        """Return the wall seconds a run holding ``num_devices`` devices may last, and which limit rules."""
        if num_devices < 1:
            raise InvalidInputError(f"num_devices must be at least 1, got {num_devices}.")
        limits: dict[str, float] = {}
        if self.gpu_hours is not None:
            limits["gpu_hours"] = self.gpu_hours * _SECONDS_PER_HOUR / num_devices
        if self.wall_hours is not None:
            limits["wall_hours"] = self.wall_hours * _SECONDS_PER_HOUR
        if self.usd is not None and self.usd_per_device_hour is not None:
            limits["usd"] = self.usd / self.usd_per_device_hour * _SECONDS_PER_HOUR / num_devices
        ruling = min(limits, key=lambda name: limits[name])
        return BudgetInSeconds(limits[ruling], ruling)

    def usd_for(self, device_hours: float) -> float | None:
        """Return the price of so many device-hours, or None when no price is known."""
        return None if self.usd_per_device_hour is None else device_hours * self.usd_per_device_hour

    def to_json(self) -> dict[str, float | None]:
        """Return the limits as given."""
        return {
            "gpu_hours": self.gpu_hours,
            "wall_hours": self.wall_hours,
            "usd": self.usd,
            "usd_per_device_hour": self.usd_per_device_hour,
        }
