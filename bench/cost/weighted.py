"""Statistics in which every publisher weighs the same, however many rows it published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def publisher_weights(publishers: Sequence[str]) -> list[float]:
    """Return weights that sum to 1, the same for every publisher, shared by its rows."""
    counts = Counter(publishers)
    return [1.0 / (len(counts) * counts[publisher]) for publisher in publishers]


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the weight doesn't exceed; at an exact half the mean."""
    pairs = sorted(zip(values, weights, strict=True))
    total = sum(weights)
    reached = 0.0
    for position, (value, weight) in enumerate(pairs):
        reached += weight
        if abs(reached - share * total) < 1e-9 * total and position + 1 < len(pairs):
            return (value + pairs[position + 1][0]) / 2
        if reached > share * total:
            return value
    return pairs[-1][0]


def weighted_share(hits: Sequence[bool], weights: Sequence[float]) -> float:
    """Return the weight of what is true."""
    return sum(weight for hit, weight in zip(hits, weights, strict=True) if hit) / sum(weights)
