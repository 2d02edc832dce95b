"""Sums and products of uncertain quantities that don't err together.

Adding the ends of intervals assumes that everything goes wrong at once. That is right for quantities that share
their cause, such as steps and evaluations, which one step time scales; those are added with ``Interval.__add__``.
Others err by themselves: their distances from the middle add as squares, each side for itself (exact for normal
errors; the same in logarithms for factors, exact for log-normal ones).
"""

from __future__ import annotations

import math

from ...core.interval import Interval


def independent_sum(*terms: Interval) -> Interval:
    """Return the sum of quantities whose errors have nothing to do with each other."""
    mid = sum(term.mid for term in terms)
    below = math.sqrt(sum((term.mid - term.low) ** 2 for term in terms))
    above = math.sqrt(sum((term.high - term.mid) ** 2 for term in terms))
    return Interval(mid - below, mid, mid + above)


def independent_product(*factors: Interval) -> Interval:
    """Return the product of positive quantities whose errors have nothing to do with each other."""
    mid = math.prod(factor.mid for factor in factors)
    below = math.sqrt(sum(math.log(factor.mid / factor.low) ** 2 for factor in factors))
    above = math.sqrt(sum(math.log(factor.high / factor.mid) ** 2 for factor in factors))
    return Interval(mid * math.exp(-below), mid, mid * math.exp(above))


def exactly(value: float) -> Interval:
    """Return a quantity that is known."""
    return Interval(value, value, value)
