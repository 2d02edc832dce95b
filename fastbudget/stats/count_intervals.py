"""Bootstrap intervals of statistics of category counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .bootstrap_intervals import percentiles
from .validation import FloatArray, check_confidence


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
    return percentiles(values, float(statistic(counts)), confidence)
