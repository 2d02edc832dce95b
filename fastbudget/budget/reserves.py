"""How much time to keep back for the last save and the last evaluation, learnt from those seen."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

# Durations vary by factors, so they are modeled as log-normal. A few samples say little about the spread: it starts at
# a prior that counts as so many samples. The same evaluation repeated varies little; a save waits for a shared disk.
EVALUATION_SIGMA, SAVE_SIGMA, STEP_SIGMA = 0.15, 0.3, 0.2
_PRIOR_SAMPLES = 1.0
_FLOOR_SIGMA = 0.01
_FEW = 3
_MEMORY = 200
# Beyond this many sigma a reserve buys nothing: what is that rare isn't log-normal.
_MOST_SIGMAS = 4.0


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A duration whose logarithm is normal with mean ``mu`` and standard deviation ``sigma``; seconds."""

    mu: float
    sigma: float

    def quantile_s(self, sigmas: float) -> float:
        """Return the duration so many sigma from the median."""
        return math.exp(self.mu + sigmas * self.sigma)

    def density(self, sigmas: float) -> float:
        """Return the probability density per second there."""
        return math.exp(-0.5 * sigmas**2) / (math.sqrt(2 * math.pi) * self.sigma * self.quantile_s(sigmas))


class DurationEstimate:
    """A running log-normal model of one kind of duration, over its latest samples; adding one is O(1).

    The first sample is forgotten once there are three others: it compiles, allocates and warms up.

    Args:
        usual_sigma: Of the durations' logarithm, as far as nothing is known of them.
    """

    def __init__(self, usual_sigma: float = SAVE_SIGMA) -> None:
        self._usual_sigma = usual_sigma
        self._logs: deque[float] = deque()
        self._sum = self._squares = 0.0
        self._has_first = True

    def add(self, seconds: float) -> None:
        """Take in a measured duration."""
        value = math.log(seconds) if seconds > 1e-9 else math.log(1e-9)
        logs = self._logs
        logs.append(value)
        self._sum += value
        self._squares += value * value
        if (self._has_first and len(logs) > _FEW) or len(logs) > _MEMORY:
            self._has_first = False
            oldest = logs.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest

    def __len__(self) -> int:
        return len(self._logs)

    def median_s(self) -> float | None:
        """Return the typical duration, None before the first sample."""
        return math.exp(self._sum / len(self._logs)) if self._logs else None

    def next_one(self) -> LogNormal | None:
        """Return what is known of the next duration, None before the first sample.

        The predictive distribution: its spread holds that of the durations and the doubt about their median.
        """
        count = len(self._logs)
        if not count:
            return None
        mu = self._sum / count
        deviations = max(0.0, self._squares - count * mu * mu)
        variance = (_PRIOR_SAMPLES * self._usual_sigma**2 + deviations) / (_PRIOR_SAMPLES + count - 1)
        return LogNormal(mu, max(_FLOOR_SIGMA, math.sqrt(variance * (1 + 1 / count))))

    def upper_s(self, sigmas: float = 2.0) -> float:
        """Return a duration that is not often exceeded; 0 before the first sample."""
        known = self.next_one()
        return known.quantile_s(sigmas) if known else 0.0


def sum_of(parts: Iterable[tuple[LogNormal | None, float]]) -> LogNormal | None:
    """Return the sum of independent durations, each so many times as long, as the log-normal with its two moments.

    The upper end of a sum is far below the sum of upper ends: not all are slow at once. Source: L. F. Fenton, The Sum
    of Log-Normal Probability Distributions in Scatter Transmission Systems, IRE Trans. Commun. Syst. 8, 1960.

    Args:
        parts: Durations, None for unknown ones, and factors.
    """
    mean = variance = 0.0
    for duration, factor in parts:
        if duration is None or factor <= 0:
            continue
        part = factor * math.exp(duration.mu + duration.sigma**2 / 2)
        mean += part
        variance += part**2 * math.expm1(duration.sigma**2)
    if mean <= 0:
        return None
    sigma_squared = math.log1p(variance / mean**2)
    return LogNormal(math.log(mean) - sigma_squared / 2, math.sqrt(sigma_squared))


def least_waste_s(finish: LogNormal, at_stake_s: float) -> float:
    """Return how much time to keep back for finishing so that the least is wasted on average.

    Keeping back R, R - S is left unused if finishing takes S < R; if it takes longer, it is abandoned at the limit, and
    R and the work since the last durable checkpoint are wasted. The expected waste is least where one more second kept
    back costs as much as it saves: density(R) (at_stake + R) = 1, right of the median (the newsvendor problem).

    Args:
        finish: How long finishing takes.
        at_stake_s: Seconds of work since the last durable checkpoint.
    """
    low, high = 0.0, _MOST_SIGMAS
    for _ in range(24):
        sigmas = (low + high) / 2
        if finish.density(sigmas) * (at_stake_s + finish.quantile_s(sigmas)) > 1:
            low = sigmas
        else:
            high = sigmas
    return finish.quantile_s((low + high) / 2)
