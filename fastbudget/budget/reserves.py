"""How long a save or an evaluation may take, learnt from those seen: the time to keep back for the last ones."""

from __future__ import annotations

import math
from collections import deque

# Durations vary by factors, so they are modeled as log-normal. A few samples say little about the spread: it starts at
# a wide prior that counts as four samples, and is never taken below the floor. A reserve of the mean alone is overshot
# in about half of all runs; the mean + 4 sigma of the logarithm in fewer than one in a thousand.
_FLOOR_SIGMA = 0.25
_PRIOR_SIGMA = 0.4
_PRIOR_SAMPLES = 4
# The system may take the processor away for this long at any time, however short the work.
_JITTER_S = 0.1
_FEW = 3
_MEMORY = 200


class DurationEstimate:
    """A running log-normal model of one kind of duration, over its latest samples.

    The first sample is forgotten once there are three others: it compiles, allocates and warms up.
    """

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=_MEMORY)
        self._has_first = True

    def add(self, seconds: float) -> None:
        """Take in a measured duration."""
        self._logs.append(math.log(max(seconds, 1e-9)))
        if self._has_first and len(self._logs) > _FEW:
            self._logs.popleft()
            self._has_first = False

    def __len__(self) -> int:
        return len(self._logs)

    def _mean(self) -> float:
        return sum(self._logs) / len(self._logs)

    def median_s(self) -> float | None:
        """Return the typical duration, None before the first sample."""
        return math.exp(self._mean()) if self._logs else None

    def upper_s(self, sigmas: float = 4.0) -> float:
        """Return a duration that is rarely exceeded; 0 before the first sample."""
        if not self._logs:
            return 0.0
        mean = self._mean()
        count = len(self._logs)
        squares = _PRIOR_SAMPLES * _PRIOR_SIGMA**2 + sum((value - mean) ** 2 for value in self._logs)
        sigma = math.sqrt(squares / (_PRIOR_SAMPLES + count - 1))
        longest = math.exp(max(self._logs))
        return max(math.exp(mean + sigmas * max(sigma, _FLOOR_SIGMA)), longest + _JITTER_S)

    def next_s(self) -> float:
        """Return what the next of many, such as a step, may take: its upper bound, or while few are known the longest.

        A step too long eats into the reserve's margin; stopping after two slow ones would waste the budget.
        """
        if not self._logs:
            return 0.0
        longest = math.exp(max(self._logs))
        if len(self._logs) < _FEW:
            return longest
        return min(self.upper_s(3.0), longest + _JITTER_S)
