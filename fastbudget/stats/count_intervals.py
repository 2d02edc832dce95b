"""Bootstrap intervals of statistics of category counts."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .bootstrap_intervals import percentiles
from .validation import FloatArray, check_confidence

# Counts drawn in all: beyond, fewer resamples are made, and their standard deviation gives the ends.
_MOST_COUNTS = 50_000_000
_FEWEST_RESAMPLES = 200
_BLOCK = 4_000_000  # counts in memory at once

_Statistic = Callable[[npt.NDArray[np.int64]], FloatArray]


def bootstrap_counts(
    counts: npt.NDArray[np.int64],
    statistic: _Statistic,
    *,
    pseudo_counts: FloatArray | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of a statistic of category counts, by resampling the counts (approximate).

    Resampling n examples with replacement is drawing the counts from a multinomial, so the cost depends on the number
    of categories and not on n. The interval is moved by twice the bias that resampling shows (once for the resamples',
    once for the sample's own): a macro average over classes of few examples is too low in every sample, and lower still
    in resamples. A statistic whose resamples all lie in [0, 1] keeps its interval there.

    Args:
        counts: int64 [K], examples per category.
        statistic: Maps counts [..., K] to values [...].
        pseudo_counts: float [K] added to the counts for the resampling only, so that a category never seen keeps a
            chance (an all-correct sample doesn't mean no errors exist).
        confidence: Between 0 and 1.
        resamples: How many; the ends' Monte-Carlo error falls with its square root. Of more than 25,000 categories
            fewer are drawn, and the ends are those of a normal distribution.
        seed: Of the generator; the same seed gives the same interval.
    """
    check_confidence(confidence)
    if counts.sum() < 1:
        raise InvalidInputError("A bootstrap needs at least one example.")
    value = float(statistic(counts))
    generator = np.random.default_rng(seed)
    affordable = max(_FEWEST_RESAMPLES, _MOST_COUNTS // counts.size)
    weights = counts if pseudo_counts is None else counts + pseudo_counts
    replicates = _replicates(counts, weights, statistic, min(resamples, affordable), generator)
    if resamples <= affordable:
        low, high = percentiles(replicates, value, confidence)
    else:
        half = NormalDist().inv_cdf(0.5 + confidence / 2) * float(replicates.std(ddof=1))
        low, high = float(replicates.mean()) - half, float(replicates.mean()) + half
    # Pseudo-counts lower a faultless sample's resamples on purpose: the bias is that of resamples without them.
    plain = replicates
    if pseudo_counts is not None:
        plain = _replicates(counts, counts, statistic, min(resamples, _FEWEST_RESAMPLES), generator)
    bias = float(plain.mean()) - value
    low, high = min(low - 2 * bias, value), max(high - 2 * bias, value)
    if replicates.min() >= 0 and replicates.max() <= 1:
        low, high = max(low, 0.0), min(high, 1.0)
    return low, high


def _replicates(
    counts: npt.NDArray[np.int64],
    weights: npt.NDArray[np.int64] | FloatArray,
    statistic: _Statistic,
    resamples: int,
    generator: np.random.Generator,
) -> FloatArray:
    kept = np.flatnonzero(weights)
    probabilities = weights[kept] / weights[kept].sum()
    total = int(counts.sum())
    values = np.empty(resamples)
    # In blocks: one draw of all resamples would hold resamples × K numbers.
    block = max(1, _BLOCK // max(1, counts.size))
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = np.zeros((size, counts.size), np.int64)
        drawn[:, kept] = generator.multinomial(total, probabilities, size)
        values[start : start + size] = statistic(drawn)
    return values
