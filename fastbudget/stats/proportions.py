"""Intervals for a share of successes, of endless supply or of a finite set."""

from __future__ import annotations

import math
from statistics import NormalDist

from ..core.errors import InvalidInputError
from .distributions import beta_quantile, hypergeometric_probabilities
from .results import ConfidenceInterval
from .validation import check_confidence


def wilson_interval(
    successes: int, n: int, confidence: float = 0.95, population: int | None = None
) -> ConfidenceInterval:
    """Wilson's score interval for a proportion (asymptotic).

    Never empty and never outside [0, 1]: 30 of 30 gives (0.886, 1.0). Its coverage swings around the stated one: about
    92% instead of 95% at p = 0.98, n = 50. Source: E. B. Wilson, "Probable Inference, the Law of Succession, and
    Statistical Inference", JASA 22 (1927), 209-212.

    Args:
        successes: In [0, n].
        n: At least 1.
        confidence: Between 0 and 1.
        population: N, when the n were drawn without replacement from N examples and the share among the N is asked
            for: the variance is (N - n) / (N - 1) times that of endless supply (W. G. Cochran, Sampling Techniques,
            3rd ed. 1977, section 3.2), so n counts as n (N - 1) / (N - n); at n = N the share is known.

    Raises:
        InvalidInputError: an argument is out of its range.
    """
    _check(successes, n, confidence, population)
    share = successes / n
    size = float(n)
    if population is not None:
        if population == n:
            return _known(share, confidence)
        size = n * (population - 1) / (population - n)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    center = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    return ConfidenceInterval(
        # Exact at the ends, where rounding would leave 0.9999….
        low=0.0 if successes == 0 else max(0.0, center - half),
        high=1.0 if successes == n else min(1.0, center + half),
        value=share,
        se=_standard_error(successes, n, size),
        confidence=confidence,
        method="Wilson" if population is None else "Wilson, finite population",
        exactness="asymptotic",
    )


def clopper_pearson_interval(
    successes: int, n: int, confidence: float = 0.95, population: int | None = None
) -> ConfidenceInterval:
    """Clopper and Pearson's interval for a proportion (exact: covers at least as often as stated, for every n and p).

    30 of 30 gives (0.884, 1.0). Source: C. J. Clopper, E. S. Pearson, "The use of confidence or fiducial limits
    illustrated in the case of the binomial", Biometrika 26 (1934), 404-413.

    Args:
        successes: In [0, n].
        n: At least 1.
        confidence: Between 0 and 1.
        population: N, when the n were drawn without replacement from N examples and the share among the N is asked
            for: the same inversion of tails, of the hypergeometric distribution.

    Raises:
        InvalidInputError: an argument is out of its range.
    """
    _check(successes, n, confidence, population)
    tail = (1 - confidence) / 2
    if population is None:
        low = 0.0 if successes == 0 else beta_quantile(tail, successes, n - successes + 1)
        high = 1.0 if successes == n else beta_quantile(1 - tail, successes + 1, n - successes)
        size = float(n)
    elif population == n:
        return _known(successes / n, confidence)
    else:
        low = _fewest(successes, n, population, tail) / population
        high = 1 - _fewest(n - successes, n, population, tail) / population
        size = n * (population - 1) / (population - n)
    return ConfidenceInterval(
        low=low,
        high=high,
        value=successes / n,
        se=_standard_error(successes, n, size),
        confidence=confidence,
        method="Clopper-Pearson" if population is None else "Clopper-Pearson, finite population",
        exactness="exact",
    )


def share_interval(
    successes: int, n: int, confidence: float = 0.95, population: int | None = None
) -> ConfidenceInterval:
    """Return Wilson's interval, and at 0 and n, where it is too narrow, Clopper and Pearson's; arguments are theirs."""
    exact = successes in (0, n)
    return (clopper_pearson_interval if exact else wilson_interval)(successes, n, confidence, population)


def _fewest(successes: int, n: int, population: int, tail: float) -> int:
    """Return the fewest successes in the population that make so many in the sample likelier than ``tail``."""
    low, high = successes, population - (n - successes)
    while low < high:
        middle = (low + high) // 2
        least, probabilities = hypergeometric_probabilities(population, middle, n)
        if float(probabilities[max(0, successes - least) :].sum()) > tail:
            high = middle
        else:
            low = middle + 1
    return low


def _check(successes: int, n: int, confidence: float, population: int | None) -> None:
    check_confidence(confidence)
    if n < 1 or not 0 <= successes <= n:
        raise InvalidInputError(f"A proportion needs 0 <= successes <= n and n >= 1, got {successes} of {n}.")
    if population is not None and population < n:
        raise InvalidInputError(f"population must be at least the n drawn from it, got {population} < {n}.")


def _standard_error(successes: int, n: int, size: float) -> float:
    """√(p (1 - p) / size), at 0 and n with two successes and failures added (Agresti and Coull 1998): never 0."""
    share = successes / n
    if successes in (0, n):
        share, size = (successes + 2) / (n + 4), size + 4
    return math.sqrt(share * (1 - share) / size)


def _known(share: float, confidence: float) -> ConfidenceInterval:
    return ConfidenceInterval(
        low=share, high=share, value=share, se=0.0, confidence=confidence, method="all evaluated", exactness="exact"
    )
