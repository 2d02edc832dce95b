"""What a plan may spend, checked against what a job costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ...core.budget import Budget
from ...core.errors import InvalidInputError, did_you_mean, one_of
from ...core.interval import Interval
from ..job.job_accounting import JobCost

_WORDS = {"usd": "USD", "gpu_hours": "device-hours", "wall_hours": "hours", "kwh": "kWh"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits of a whole job, its buffer included. None: no limit.

    Attributes:
        usd: money.
        gpu_hours: device-hours.
        kwh: electricity.
        wall_hours: hours on the clock, by the budget.
        deadline_hours: hours on the clock, by the deadline.
    """

    usd: float | None = None
    gpu_hours: float | None = None
    kwh: float | None = None
    wall_hours: float | None = None
    deadline_hours: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value <= 0:
                raise InvalidInputError(f"{field.name} must be a finite number above 0, or None, got {value!r}.")

    @property
    def given(self) -> dict[str, float]:
        """The limits that there are."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def spent(self, name: str, cost: JobCost) -> Interval | None:
        """Return what a job spends of a limit; None: not known."""
        found: Interval | None = getattr(cost, "wall_hours" if name == "deadline_hours" else name)
        return found

    def exceeded(self, cost: JobCost) -> dict[str, float]:
        """Return the limits that the middle of the estimate exceeds, each with what it asks for as a multiple."""
        over = {}
        for name, limit in self.given.items():
            spent = self.spent(name, cost)
            if spent is None:
                over[name] = math.inf
            elif spent.mid > limit:
                over[name] = spent.mid / limit
        return over

    def risks(self, cost: JobCost) -> tuple[str, ...]:
        """Return in words the limits that the upper end of the 80% interval exceeds."""
        found = []
        for name, limit in self.given.items():
            spent = self.spent(name, cost)
            if spent is not None and spent.high > limit:
                found.append(f"{reason_of(name)}: up to {shown(name, spent.high)}, limit {shown(name, limit)}")
        return tuple(found)


def read_limits(budget: Budget | Mapping[str, Any] | None, deadline_hours: float | None) -> tuple[Limits, float | None]:
    """Return the limits of a budget and a deadline, and the price that a budget sets.

    Raises:
        InvalidInputError: an unknown limit, or one that is no number above 0.
    """
    if budget is None:
        return Limits(deadline_hours=deadline_hours), None
    values = dict(budget) if isinstance(budget, Mapping) else budget.to_json()
    price = values.pop("usd_per_device_hour", None)
    known = ("usd", "gpu_hours", "wall_hours", "kwh")
    for name in set(values) - set(known):
        if isinstance(budget, Mapping):
            raise InvalidInputError(f"Unknown limit {name!r}.{did_you_mean(name, known)} Known: {one_of(known)}.")
    return Limits(deadline_hours=deadline_hours, **{name: values.get(name) for name in known}), price


def most_exceeded(exceeded: Mapping[str, float]) -> tuple[str, float]:
    """Return the limit that is exceeded by most, and by how many times."""
    return max(exceeded.items(), key=lambda pair: pair[1])


def reason_of(limit: str, times: float = 1.0) -> str:
    """Return ``"deadline"`` or ``"budget"``; ``"price"`` or ``"power"`` where what is spent isn't known."""
    if math.isinf(times):
        return {"usd": "price"}.get(limit, "power")
    return "deadline" if limit == "deadline_hours" else "budget"


def shown(limit: str, value: float) -> str:
    """Return a value of a limit with its unit."""
    digits = f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
    return f"{digits} {_WORDS.get(limit, 'hours')}"
