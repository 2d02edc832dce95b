"""An estimate with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Interval:
    """Low, middle and high value of one estimated quantity, in the unit its owner names."""

    low: float
    mid: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.mid <= self.high:
            raise InvalidInputError(f"Interval needs low <= mid <= high, got {self.low}, {self.mid}, {self.high}.")

    def scaled(self, factor: float) -> Interval:
        """Return the interval with all three values times a non-negative factor."""
        return Interval(self.low * factor, self.mid * factor, self.high * factor)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def to_json(self) -> dict[str, float]:
        """Return ``{"low", "mid", "high"}``."""
        return {"low": self.low, "mid": self.mid, "high": self.high}
