"""From resampled values to an interval: percentile, basic and BCa.

Sources: B. Efron, "Better bootstrap confidence intervals", JASA 82 (1987), 171-185; A. C. Davison, D. V. Hinkley,
Bootstrap Methods and their Application, 1997, chapter 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from ..core.errors import InvalidInputError, one_of
from .distributions import binomial_probabilities
from .results import ConfidenceInterval
from .validation import FloatArray, IntArray

Method = Literal["percentile", "basic", "bca"]

_NORMAL = NormalDist()


def check_method(method: str) -> None:
    """Raise InvalidInputError unless the method is known."""
    if method not in get_args(Method):
        raise InvalidInputError(f"method must be one of {one_of(get_args(Method))}, got {method!r}.")


def interval_of(
    replicates: FloatArray,
    value: float,
    method: Method,
    confidence: float,
    influence: Callable[[], FloatArray],
) -> ConfidenceInterval:
    """Return the interval of a value from its replicates [resamples]; ``influence`` is asked for by BCa only."""
    bad = int((~np.isfinite(replicates)).sum())
    if bad or not math.isfinite(value):
        raise InvalidInputError(
            f"The statistic must be finite, got NaN or infinity in {bad} of {len(replicates)} resamples and {value:g} "
            "on the whole sample."
        )
    tail = (1 - confidence) / 2
    levels = (tail, 1 - tail)
    if method == "bca":
        below = float((replicates < value).mean() + 0.5 * (replicates == value).mean())
        least = 0.5 / len(replicates)
        levels = corrected_levels(levels, min(max(below, least), 1 - least), acceleration(influence()))
    low, high = (float(quantile) for quantile in np.quantile(replicates, levels))
    if method == "basic":
        low, high = 2 * value - high, 2 * value - low
    return ConfidenceInterval(
        low=low,
        high=high,
        value=value,
        se=float(replicates.std(ddof=1)) if len(replicates) > 1 else 0.0,
        confidence=confidence,
        method=f"bootstrap ({method})",
        exactness="approximate",
    )


def binomial_interval(successes: int, n: int, method: Method, confidence: float) -> ConfidenceInterval:
    """Return what endless resampling of 0 < successes < n would give: resampled sums are Binomial(n, successes / n)."""
    share = successes / n
    probabilities = binomial_probabilities(n, share)
    cumulative = np.cumsum(probabilities)
    tail = (1 - confidence) / 2
    levels = (tail, 1 - tail)
    if method == "bca":
        below = float(cumulative[successes] - 0.5 * probabilities[successes])
        skewness = (1 - 2 * share) / (6 * math.sqrt(n * share * (1 - share)))
        levels = corrected_levels(levels, below, skewness)
    low, high = (float(np.searchsorted(cumulative, level)) / n for level in levels)
    if method == "basic":
        low, high = 2 * share - high, 2 * share - low
    return ConfidenceInterval(
        low=low,
        high=min(high, 1.0) if method != "basic" else high,
        value=share,
        se=math.sqrt(share * (1 - share) / n),
        confidence=confidence,
        method=f"bootstrap ({method}), binomial instead of resamples",
        exactness="asymptotic",
    )


def all_equal_interval(
    value: float, n: int, bounds: tuple[float, float] | None, confidence: float
) -> ConfidenceInterval:
    """Return the interval of a mean whose n values are all the same, which resampling would call certain.

    If other values had a probability of q, none would be seen with (1 - q)^n; with q as large as that leaves
    (1 - confidence) / 2, the mean lies at most q times the distance to the bounds away. For 0 and 1 this is Clopper and
    Pearson's interval: 30 of 30 gives 0.884. Without bounds nothing can be said, and the method says so.
    """
    low = high = value
    method, se = "all values equal, bounds unknown: no spread to resample", 0.0
    if bounds is not None:
        others = 1 - ((1 - confidence) / 2) ** (1 / n)
        low, high = value - others * (value - bounds[0]), value + others * (bounds[1] - value)
        method = "all values equal (Clopper-Pearson)"
        # As of two values at each bound added to the sample, Agresti and Coull's standard error.
        se = (bounds[1] - bounds[0]) * math.sqrt(2 * (n + 2)) / (n + 4) ** 1.5
    return ConfidenceInterval(
        low=low,
        high=high,
        value=value,
        se=se,
        confidence=confidence,
        method=method,
        exactness="exact" if bounds is not None else "approximate",
    )


def corrected_levels(levels: tuple[float, float], below: float, acceleration: float) -> tuple[float, float]:
    """Return BCa's quantile levels, given the share of replicates below the value."""
    bias = _NORMAL.inv_cdf(below)

    def corrected(level: float) -> float:
        z = bias + _NORMAL.inv_cdf(level)
        # Beyond this pole the map turns around; its limit is the end it came from.
        room = 1 - acceleration * z
        return _NORMAL.cdf(bias + z / room) if room > 0 else float(z > 0)

    return corrected(levels[0]), corrected(levels[1])


def acceleration(influence: FloatArray) -> float:
    """Return BCa's acceleration: a sixth of the skewness of the influence values."""
    squares = float((influence**2).sum())
    return float((influence**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0


def influence_of(left_out: FloatArray, starts: IntArray) -> FloatArray:
    """Return jackknife influence values from the statistic without each row, stratum by stratum."""
    parts = [left_out[begin:end] for begin, end in pairwise(starts)]
    return np.concatenate([(len(part) - 1) * (part.mean() - part) for part in parts])
