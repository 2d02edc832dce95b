"""How many examples a paired comparison takes, and what it can detect. Asymptotic: normal approximation."""

from __future__ import annotations

import math
from statistics import NormalDist

from ..core.errors import InvalidInputError
from .validation import check_alpha

_NORMAL = NormalDist()


def paired_power(
    n: int, difference: float, *, churn: float | None = None, std: float | None = None, alpha: float = 0.05
) -> float:
    """Return the probability that a two-sided paired test of n examples finds a true difference.

    Source: R. J. Connor, "Sample size for testing differences in proportions for the paired-sample design",
    Biometrics 43 (1987), 207-211: variance churn under the null and churn - difference² otherwise.

    Args:
        n: Examples.
        difference: The true mean difference, not 0.
        churn: For scores of 0 and 1: the share of examples whose score changes, at least |difference|.
        std: For other scores: standard deviation of the differences. Give one of both.
        alpha: Error rate of the test.
    """
    null, alternative = _deviations(difference, churn, std)
    _check_count(n)
    shift = abs(difference) * math.sqrt(n)
    return _NORMAL.cdf((shift - _quantile(alpha) * null) / alternative) if alternative else float(shift > 0)


def required_examples(
    difference: float,
    *,
    churn: float | None = None,
    std: float | None = None,
    power: float = 0.8,
    alpha: float = 0.05,
    population: int | None = None,
) -> int:
    """Return how many examples find a true difference with the given power.

    Args:
        difference: The true mean difference, not 0.
        churn: See `paired_power`.
        std: See `paired_power`.
        power: Between 0 and 1.
        alpha: Error rate of the test.
        population: N, when examples are drawn without replacement from N: fewer are needed, never more than N.
    """
    null, alternative = _deviations(difference, churn, std)
    n = ((_quantile(alpha) * null + _power_quantile(power) * alternative) / difference) ** 2
    if population is not None:
        _check_count(population)
        n = n / (1 + (n - 1) / population)
    return max(1, math.ceil(n - 1e-9))


def minimum_detectable_difference(
    n: int,
    *,
    churn: float | None = None,
    std: float | None = None,
    power: float = 0.8,
    alpha: float = 0.05,
    population: int | None = None,
) -> float:
    """Return the smallest true difference that a two-sided paired test of n examples finds with the given power.

    Args:
        n: Examples.
        churn: See `paired_power`; the result is at most this.
        std: See `paired_power`.
        power: Between 0 and 1.
        alpha: Error rate of the test.
        population: N, when examples are drawn without replacement from N; 0 at n = N.
    """
    _check_count(n)
    if population is not None:
        if population < n:
            raise InvalidInputError(f"population must be at least n, got {population} < {n}.")
        if population == n:
            return 0.0
        n_endless = n * (population - 1) / (population - n)
    else:
        n_endless = float(n)
    _deviations(1e-12, churn, std)  # checks them
    if std is not None:
        return (_quantile(alpha) + _power_quantile(power)) * std / math.sqrt(n_endless)
    assert churn is not None
    low, high = 0.0, churn
    for _ in range(100):
        middle = 0.5 * (low + high)
        null, alternative = _deviations(middle, churn, None)
        enough = (_quantile(alpha) * null + _power_quantile(power) * alternative) ** 2 <= middle**2 * n_endless
        low, high = (low, middle) if enough else (middle, high)
    return high


def _deviations(difference: float, churn: float | None, std: float | None) -> tuple[float, float]:
    """Return the standard deviation of one difference, under no difference and under the one given."""
    if difference == 0 or not math.isfinite(difference):
        raise InvalidInputError(f"difference must be a finite number other than 0, got {difference!r}.")
    if (churn is None) == (std is None):
        raise InvalidInputError("Give either churn (scores of 0 and 1) or std (of the differences).")
    if std is not None:
        if not std > 0:
            raise InvalidInputError(f"std must be above 0, got {std!r}.")
        return std, std
    assert churn is not None
    if not 0 < churn <= 1 or churn < abs(difference):
        raise InvalidInputError(
            f"churn must be in (0, 1] and at least |difference| {abs(difference):g}, got {churn!r}."
        )
    return math.sqrt(churn), math.sqrt(max(0.0, churn - difference**2))


def _quantile(alpha: float) -> float:
    return _NORMAL.inv_cdf(1 - check_alpha(alpha) / 2)


def _power_quantile(power: float) -> float:
    if not 0 < power < 1:
        raise InvalidInputError(f"power must be between 0 and 1 (0.8, say), got {power!r}.")
    return _NORMAL.inv_cdf(power)


def _check_count(n: int) -> None:
    if n < 1:
        raise InvalidInputError(f"A test needs at least one example, got {n!r}.")
