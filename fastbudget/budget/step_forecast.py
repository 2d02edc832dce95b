"""How many more steps a budget has room for."""

from __future__ import annotations

from .reserves import DurationEstimate

# The first steps compile, allocate and warm up: they say nothing about those that follow.
_TOO_FEW = 4


class StepForecast:
    """Divides the time left by what a step takes lately, together with its share of the evaluations and saves so far.

    Looked at a few times a second; in between, each step taken is one fewer.

    Args:
        steps: Knows how long steps take.
    """

    def __init__(self, steps: DurationEstimate) -> None:
        self._steps = steps
        self._aside_s = 0.0
        self._left: float | None = None
        self._taken_at_look = 0

    def add_aside(self, seconds: float) -> None:
        """Take in how long an evaluation or save between two steps took."""
        if len(self._steps):  # before the first step they are not a share of the steps' time
            self._aside_s += seconds

    def look(self, seconds_left: float, taken: int) -> float | None:
        """Divide anew, ``taken`` steps after the start; return the steps left."""
        step_s = self._steps.median_s()
        known = step_s is not None and taken >= _TOO_FEW
        self.set(max(0.0, seconds_left) / (step_s + self._aside_s / taken) if step_s and known else None, taken)
        return self._left

    def set(self, left: float | None, taken: int) -> None:
        """Take over another's number."""
        self._left, self._taken_at_look = left, taken

    def left(self, taken: int) -> float | None:
        """Return the steps left, ``taken`` steps after the start; None while unknown."""
        return None if self._left is None else max(0.0, self._left - (taken - self._taken_at_look))
