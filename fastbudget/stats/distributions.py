"""Binomial, hypergeometric and beta distributions, as far as the intervals here need them; numpy only."""

from __future__ import annotations

import math

import numpy as np

from .validation import FloatArray

_TINY = 1e-300


def binomial_probabilities(n: int, p: float) -> FloatArray:
    """Return the probabilities of 0 … n successes of n: float64 [n + 1]."""
    if p <= 0 or p >= 1:
        probabilities = np.zeros(n + 1)
        probabilities[n if p >= 1 else 0] = 1
        return probabilities
    k = np.arange(1, n + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - k + 1) / k) + math.log(p) - math.log1p(-p))])
    return _normalized(logs)


def hypergeometric_probabilities(population: int, successes: int, n: int) -> tuple[int, FloatArray]:
    """Return the least possible number of successes among n drawn, and the probabilities from there on."""
    least, most = max(0, n - (population - successes)), min(n, successes)
    k = np.arange(least + 1, most + 1)
    ratios = (successes - k + 1) / k * ((n - k + 1) / (population - successes - n + k))
    return least, _normalized(np.concatenate([[0.0], np.cumsum(np.log(ratios))]))


def _normalized(logs: FloatArray) -> FloatArray:
    values: FloatArray = np.exp(logs - logs.max())
    values /= values.sum()
    return values


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return x with I_x(a, b) = probability, by bisection to full precision."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if beta_cdf(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction of the other tail converges faster
        return 1 - beta_cdf(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # Lentz's method; some √(a + b) terms are enough.
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
