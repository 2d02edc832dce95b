"""Intervals for a share of successes."""

from __future__ import annotations

import math
from statistics import NormalDist

from ..core.errors import InvalidInputError
from .validation import check_confidence


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a binomial proportion.

    Never empty and never outside [0, 1]: 30 of 30 gives (0.886, 1.0). Source: E. B. Wilson, "Probable Inference, the
    Law of Succession, and Statistical Inference", JASA 22 (1927), 209-212.

    Args:
        successes: In [0, n].
        n: At least 1.
        confidence: Between 0 and 1.
    """
    check_confidence(confidence)
    if n < 1 or not 0 <= successes <= n:
        raise InvalidInputError(f"Wilson's interval needs 0 <= successes <= n and n >= 1, got {successes} of {n}.")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # Exact at the ends, where rounding would leave 0.9999….
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == n else min(1.0, center + half)
    return low, high
