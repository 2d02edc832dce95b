"""How many more steps a budget has room for."""

from __future__ import annotations

from collections import deque

# The pace is that of the last tenth of the steps, but of no fewer than 20: it follows a change and rides out a stall.
_RECENT_SHARE, _RECENT_STEPS = 0.1, 20
_TOO_FEW = 4
# Marks lie at least this share of the steps apart, so that there are few.
_SPACING = 0.01


class StepForecast:
    """Divides the time left by what a step takes lately, together with its share of the evaluations and saves so far.

    The first step doesn't count: it compiles, allocates and warms up. Between two looks, a few times a second, each
    step taken is one fewer.
    """

    def __init__(self) -> None:
        self._aside_s = 0.0
        # (steps taken, seconds at steps, seconds aside): after the first step, and at the looks of late.
        self._first: tuple[int, float, float] | None = None
        self._marks: deque[tuple[int, float, float]] = deque()
        self._left: float | None = None
        self._taken_at_look = 0

    def add_aside(self, seconds: float) -> None:
        """Take in how long an evaluation or save took."""
        self._aside_s += seconds

    def look(self, at_s: float, seconds_left: float, taken: int) -> float | None:
        """Divide anew; return the steps left, None while unknown.

        Args:
            at_s: The clock's time.
            seconds_left: For steps.
            taken: Steps since the start.
        """
        step_s = self._step_s(at_s, taken) if taken else None
        self.set(max(0.0, seconds_left) / step_s if step_s else None, taken)
        return self._left

    def _step_s(self, at_s: float, taken: int) -> float | None:
        mark = (taken, at_s - self._aside_s, self._aside_s)
        marks = self._marks
        if self._first is None:
            self._first = mark
        if not marks or taken - marks[-1][0] >= max(1.0, _SPACING * taken):
            marks.append(mark)
        while len(marks) > 1 and taken - marks[1][0] >= max(_RECENT_STEPS, _RECENT_SHARE * taken):
            marks.popleft()
        since, begun = marks[0], self._first
        if taken - since[0] < _TOO_FEW:
            return None
        pace = (mark[1] - since[1]) / (taken - since[0])
        busy_s = mark[1] - begun[1]
        return pace * (1 + (mark[2] - begun[2]) / busy_s) if busy_s > 0 else None

    def set(self, left: float | None, taken: int) -> None:
        """Take over another's number."""
        self._left, self._taken_at_look = left, taken

    def left(self, taken: int) -> float | None:
        """Return the steps left, ``taken`` steps after the start; None while unknown."""
        return None if self._left is None else max(0.0, self._left - (taken - self._taken_at_look))
