"""What an hour of an accelerator costs: a dated snapshot with sources, and prices of the user's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date

from ..core.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one device costs for an hour.

    Attributes:
        usd_per_device_hour: the price, of one device.
        device: key of the accelerator, as in :class:`Device`.
        provider: who asks it; ``"yours"`` for a price of the user's.
        instance: what is rented; None where the price is no instance's.
        spot: the device may be taken away at any time.
        date: day of the snapshot; None for a price of the user's.
        source: where it was read.
        verified: whether it was read there; else it is from memory.
        choice: why this one of several: ``"only"``, ``"median of 5"``, ``"cheapest of nebius"``, ``"given"``.
    """

    usd_per_device_hour: float
    device: str
    provider: str
    instance: str | None = None
    spot: bool = False
    date: date | None = None
    source: str
    verified: bool
    choice: str = "only"

    def __post_init__(self) -> None:
        value = self.usd_per_device_hour
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise InvalidInputError(
                f"A price must be a finite number of USD above 0 per device and hour, got {value!r}. Leave it out "
                "where none is known."
            )
