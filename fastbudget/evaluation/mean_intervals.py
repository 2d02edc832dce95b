"""Intervals of means over examples, of an endless population or of the data set itself."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ..metrics import MetricValue
from ..stats import bootstrap_ratio
from ..stats.proportions import share_interval

FloatArray = npt.NDArray[np.float64]


def mean_with_interval(
    scores: FloatArray,
    confidence: float,
    groups: npt.NDArray[np.int64] | None = None,
    population_size: int | None = None,
) -> MetricValue:
    """Return the mean of scores per example, with the interval for the population from which they are a sample.

    Args:
        scores: float [n].
        confidence: Between 0 and 1.
        groups: int [n], equal for examples that belong together.
        population_size: N, where the population is the data set; None: endless.
    """
    value = float(scores.mean())
    if population_size is not None and groups is None and is_binary(scores):
        share = share_interval(int(scores.sum()), len(scores), confidence, population_size)
        return MetricValue(
            value=value,
            low=share.low,
            high=share.high,
            confidence=confidence,
            method=f"{share.method.partition(',')[0]}, for all {population_size:,} examples (finite population)",
            num_examples=len(scores),
        )
    if groups is None and is_binary(scores):
        share = share_interval(int(scores.sum()), len(scores), confidence)
        low, high, method = share.low, share.high, share.method
    else:
        low, high = bootstrap_ratio(scores, np.ones(len(scores)), groups=groups, confidence=confidence)
        unit = "examples" if groups is None else f"{len(np.unique(groups))} groups of examples"
        method = f"bootstrap over {unit} (approximate)"
    found = MetricValue(value=value, low=low, high=high, confidence=confidence, method=method, num_examples=len(scores))
    return found if population_size is None else of_finite_population(found, population_size)


def is_binary(scores: FloatArray) -> bool:
    """Whether all scores are 0 or 1."""
    return bool(((scores == 0) | (scores == 1)).all())


def of_finite_population(value: MetricValue, population_size: int) -> MetricValue:
    """Return the interval for the value on all N examples of the data set, of which n were drawn without replacement.

    The distance of both ends from the value shrinks with the standard error, by the finite population correction
    √((N − n) / (N − 1)). Source: W. G. Cochran, Sampling Techniques, 3rd ed. (1977), ch. 2.
    """
    factor = correction(value.num_examples, population_size)
    return replace(
        value,
        low=value.value - (value.value - value.low) * factor,
        high=value.value + (value.high - value.value) * factor,
        method=f"{value.method}, for all {population_size:,} examples (finite population, approximate)",
    )


def correction(n: int, population_size: int) -> float:
    """Return the finite population correction of a standard error."""
    return math.sqrt((population_size - n) / (population_size - 1)) if population_size > 1 else 0.0


class RunningMean:
    """The mean of scores so far with a quick interval, for progress."""

    def __init__(self, confidence: float) -> None:
        self._z = NormalDist().inv_cdf(0.5 + confidence / 2)
        self._count = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, scores: FloatArray) -> None:
        """Count a batch."""
        self._count += len(scores)
        self._sum += float(scores.sum())
        self._squares += float((scores**2).sum())

    def interval(self, population_size: int | None) -> tuple[float, float, float]:
        """Return low, mean and high: Agresti and Coull's, so that no early batch of equal scores looks certain."""
        n, z = self._count, self._z
        mean = self._sum / n
        variance = max(0.0, self._squares / n - mean**2)
        half = z * math.sqrt((variance + z**2 / (4 * n)) / n)
        if population_size is not None:
            half *= correction(n, population_size)
        return mean - half, mean, mean + half
