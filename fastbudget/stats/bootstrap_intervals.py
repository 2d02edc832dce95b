"""Percentile bootstrap intervals. Approximate: their coverage nears the stated confidence as n grows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .validation import check_confidence

FloatArray = npt.NDArray[np.float64]


def _percentiles(values: FloatArray, point: float, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return min(float(low), point), max(float(high), point)


def bootstrap_counts(
    counts: npt.NDArray[np.int64],
    statistic: Callable[[npt.NDArray[np.int64]], FloatArray],
    *,
    pseudo_counts: FloatArray | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of a statistic of category counts, by resampling the counts.

    Resampling n examples with replacement is drawing the counts from a multinomial, so the cost depends on the number
    of categories and not on n.

    Args:
        counts: int64 [K], examples per category.
        statistic: Maps counts [..., K] to values [...].
        pseudo_counts: float [K] added to the counts for the resampling only, so that a category never seen keeps a
            chance (an all-correct sample doesn't mean no errors exist).
        confidence: Between 0 and 1.
        resamples: How many; the ends' Monte-Carlo error falls with its square root.
        seed: Of the generator; the same seed gives the same interval.
    """
    check_confidence(confidence)
    total = int(counts.sum())
    if total < 1:
        raise InvalidInputError("A bootstrap needs at least one example.")
    weights = counts.astype(np.float64)
    if pseudo_counts is not None:
        weights = weights + pseudo_counts
    kept = np.flatnonzero(weights)
    probabilities = weights[kept] / weights[kept].sum()
    generator = np.random.default_rng(seed)
    values = np.empty(resamples)
    # In blocks: one draw of all resamples would hold resamples × K numbers.
    block = max(1, 4_000_000 // max(1, counts.size))
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = np.zeros((size, counts.size), np.int64)
        drawn[:, kept] = generator.multinomial(total, probabilities, size)
        values[start : start + size] = statistic(drawn)
    return _percentiles(values, float(statistic(counts)), confidence)


def bootstrap_ratio(
    numerators: FloatArray,
    denominators: FloatArray,
    *,
    groups: npt.NDArray[np.int64] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of sum(numerators) / sum(denominators), resampling examples, or whole groups of dependent examples.

    Args:
        numerators: float [n].
        denominators: float [n].
        groups: int [n], equal for examples that belong together (the blocks of one document); None: all independent.
        confidence: Between 0 and 1.
        resamples: How many.
        seed: Of the generator.
    """
    check_confidence(confidence)
    if len(numerators) == 0 or len(numerators) != len(denominators):
        raise InvalidInputError(
            "A bootstrap needs as many numerators as denominators and at least one, "
            f"got {len(numerators)} and {len(denominators)}."
        )
    if groups is not None:
        if len(groups) != len(numerators):
            raise InvalidInputError(f"groups must have one entry per example, got {len(groups)} for {len(numerators)}.")
        _, members = np.unique(groups, return_inverse=True)
        numerators = np.bincount(members, weights=numerators).astype(np.float64)
        denominators = np.bincount(members, weights=denominators).astype(np.float64)
    # Examples of no weight (a sequence without scored tokens) say nothing; resamples of them alone would be 0 / 0.
    weighs = (numerators != 0) | (denominators != 0)
    numerators, denominators = numerators[weighs], denominators[weighs]
    count = len(numerators)
    if count == 0:
        raise InvalidInputError("A bootstrap of a ratio needs at least one example whose denominator isn't 0.")
    generator = np.random.default_rng(seed)
    values = np.empty(resamples)
    for index in range(resamples):
        drawn = np.bincount(generator.integers(0, count, count), minlength=count)
        values[index] = drawn @ numerators / (drawn @ denominators)
    return _percentiles(values, float(numerators.sum() / denominators.sum()), confidence)
