"""The budget: a value saying what may be spent. Spending is the business of the `budget` room."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import InvalidInputError

_SECONDS_PER_HOUR = 3600.0
_JOULES_PER_KWH = 3.6e6
_LIMITS = ("gpu_hours", "wall_hours", "usd", "kwh")
_RATES = ("usd_per_device_hour", "watts_per_device")


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
        kwh: Energy of the devices; needs ``watts_per_device`` to become time.
        watts_per_device: Power of one device: its limit (TDP, an upper end), or what was measured on similar work.

    Raises:
        InvalidInputError: no limit, a limit that is not a positive finite number, or ``usd`` without a price.
    """

    gpu_hours: float | None = None
    wall_hours: float | None = None
    usd: float | None = None
    usd_per_device_hour: float | None = None
    kwh: float | None = None
    watts_per_device: float | None = None

    def __post_init__(self) -> None:
        for name in (*_LIMITS, *_RATES):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidInputError(f"Budget: {name} must be a number, got {value!r}.")
            if not math.isfinite(value) or value <= 0:
                raise InvalidInputError(f"Budget: {name} must be a finite number above 0, got {value!r}.")
        if all(getattr(self, name) is None for name in _LIMITS):
            raise InvalidInputError("Budget: give at least one limit: gpu_hours, wall_hours, usd or kwh.")
        if self.usd is not None and self.usd_per_device_hour is None:
            raise InvalidInputError(
                "Budget: usd needs usd_per_device_hour, the price of one device for an hour; give it, "
                "or use gpu_hours or wall_hours."
            )

    def in_seconds(self, num_devices: int = 1, *, used_device_s: float = 0.0, used_s: float = 0.0) -> BudgetInSeconds:
        """Return the wall seconds a run holding ``num_devices`` devices may last, and which limit rules.

        Args:
            num_devices: Held from now on.
            used_device_s: Device-seconds spent before, perhaps on another number of devices: only what is left of the
                limits counts, and may be negative.
            used_s: Wall seconds spent before.

        Raises:
            InvalidInputError: fewer than one device, or energy is limited and the power unknown.
        """
        if num_devices < 1:
            raise InvalidInputError(f"num_devices must be at least 1, got {num_devices}.")
        limits = {
            name: (seconds - used_device_s) / num_devices for name, seconds in self.limits_in_device_seconds().items()
        }
        if self.wall_hours is not None:
            limits["wall_hours"] = self.wall_hours * _SECONDS_PER_HOUR - used_s
        ruling = min(limits, key=lambda name: limits[name])
        return BudgetInSeconds(limits[ruling], ruling)

    def limits_in_device_seconds(self) -> dict[str, float]:
        """Return the limits that devices use up together, as device-seconds by name: all but ``wall_hours``.

        Raises:
            InvalidInputError: energy is limited and the power unknown.
        """
        limits: dict[str, float] = {}
        if self.gpu_hours is not None:
            limits["gpu_hours"] = self.gpu_hours * _SECONDS_PER_HOUR
        if self.usd is not None and self.usd_per_device_hour is not None:
            limits["usd"] = self.usd / self.usd_per_device_hour * _SECONDS_PER_HOUR
        if self.kwh is not None:
            if self.watts_per_device is None:
                raise InvalidInputError(
                    "Budget: kwh needs watts_per_device to become time; give a device's power limit, or what it draws."
                )
            limits["kwh"] = self.kwh * _JOULES_PER_KWH / self.watts_per_device
        return limits

    def usd_for(self, device_hours: float) -> float | None:
        """Return the price of so many device-hours, or None when no price is known."""
        return None if self.usd_per_device_hour is None else device_hours * self.usd_per_device_hour

    def kwh_for(self, device_hours: float) -> float | None:
        """Return the energy of so many device-hours, or None when no power is known."""
        return None if self.watts_per_device is None else device_hours * self.watts_per_device / 1000

    def to_json(self) -> dict[str, float | None]:
        """Return the limits as given."""
        return {name: getattr(self, name) for name in (*_LIMITS, *_RATES)}
