"""The sequential test written plainly: one null, one side, one unit after another, logarithms throughout."""

import math

import numpy as np

PRIOR_DRAWS = 30
ENVELOPE_STEPS = 16


def greatest_wealth(values, weights, low, high, expected, null_total, fractions, shares, above=True):
    """Return the greatest wealth after each of ``values``, the units being in draw order."""
    if not above:
        values, low, high, expected = (-np.asarray(part) for part in (values, high, low, expected))
        null_total = -null_total
    count = len(weights)
    total, products = 0.0, 0.0
    squares = PRIOR_DRAWS * sum(r * r / w for r, w in zip(expected, weights, strict=True)) / sum(weights)
    control = 0.0
    logs = np.log(shares)
    wealth, greatest = 1.0, []
    grid = np.arange(ENVELOPE_STEPS + 1) / ENVELOPE_STEPS
    envelope = [max(0.0, max((b * r - lo) / w for r, lo, w in zip(expected, low, weights, strict=True))) for b in grid]
    for i, x in enumerate(values):
        left = sum(weights[i:])
        known = control * sum(expected[i:])
        z = (x - control * expected[i]) * left / weights[i] + known
        reach = left * np.interp(control, grid, envelope) - known
        mu = null_total - total
        if mu + reach > 1e-9:
            for k, fraction in enumerate(fractions):
                factor = 1 - fraction + fraction * (z + reach) / (mu + reach)
                logs[k] = logs[k] + math.log(factor) if factor > 0 else -math.inf
            wealth = max(wealth, float(np.exp(logs).sum()))
        total += x
        if total + sum(low[i + 1 : count]) > null_total + 1e-9:
            wealth = math.inf
        greatest.append(wealth)
        if expected[i]:
            products += x * expected[i] / weights[i] ** 2
            squares += expected[i] ** 2 / weights[i] ** 2
            control = min(1.0, max(0.0, products / squares))
    return np.array(greatest)
