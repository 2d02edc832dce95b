"""Percentile bootstrap intervals over rows of numbers per example. Approximate: they near the confidence as n grows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .metric_protocol import FloatArray

_RESAMPLES = 2000
# A resample reads every row: beyond this many reads, fewer resamples are drawn (their ends then err by Monte Carlo).
_MOST_READS = 200_000_000
_FEWEST_RESAMPLES = 200


def _draws(units: int, seed: int, resamples: int = _RESAMPLES) -> Iterator[npt.NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    for _ in range(max(_FEWEST_RESAMPLES, min(resamples, _MOST_READS // max(1, units)))):
        yield generator.integers(0, units, units)


def _ends(values: FloatArray, value: float, confidence: float) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence must be between 0 and 1 (0.95, say), got {confidence!r}.")
    finite = values[~np.isnan(values)]  # a resample may lack what the value needs: one of two classes, any scored token
    if len(finite) == 0:
        return value, value
    tail = (1 - confidence) / 2
    low, high = np.quantile(finite, [tail, 1 - tail])
    return min(float(low), value), max(float(high), value)


def _members(groups: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    if len(groups) != n:
        raise InvalidInputError(f"groups must have one entry per example, got {len(groups)} for {n}.")
    return np.asarray(np.unique(groups, return_inverse=True)[1])


def resampled_sums_interval(
    rows: FloatArray,
    statistic: Callable[[FloatArray], FloatArray],
    value: float,
    *,
    groups: npt.NDArray[np.int64] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of a statistic of column sums, resampling examples or whole groups of them.

    Args:
        rows: float64 [n, K].
        statistic: Maps sums [R, K + 1], the last column the number of examples, to values [R]; NaN: undefined.
        value: The statistic of all rows; the interval holds it.
        groups: int [n], equal for examples that belong together.
        confidence: Between 0 and 1.
        seed: Of the generator.
    """
    units: FloatArray = np.column_stack([rows, np.ones(len(rows))])
    if groups is not None:
        member = _members(groups, len(rows))
        units = np.stack([np.bincount(member, np.asarray(column, np.float64)) for column in units.T], axis=1)
    draws = _draws(len(units), seed)
    sums: FloatArray = np.stack([np.bincount(drawn, minlength=len(units)) @ units for drawn in draws])
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.asarray(statistic(sums), np.float64)
    return _ends(values, value, confidence)


def resampled_rows_interval(
    rows: npt.NDArray[Any],
    statistic: Callable[[npt.NDArray[Any]], float],
    value: float,
    *,
    groups: npt.NDArray[np.int64] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = _RESAMPLES,
) -> tuple[float, float]:
    """Interval of a statistic of whole rows; arguments as for `resampled_sums_interval`; ``resamples`` at most."""
    if groups is None:
        samples = (rows[drawn] for drawn in _draws(len(rows), seed, resamples))
    else:
        member = _members(groups, len(rows))
        order = np.argsort(member, kind="stable")
        starts = np.searchsorted(member[order], np.arange(member.max() + 2))
        pieces = [order[a:b] for a, b in itertools.pairwise(starts)]
        samples = (
            rows[np.concatenate([pieces[unit] for unit in drawn])] for drawn in _draws(len(pieces), seed, resamples)
        )
    return _ends(np.array([statistic(sample) for sample in samples]), value, confidence)
