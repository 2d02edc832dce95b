"""Bootstrap intervals: of means, of any statistic, and of statistics of sums (ratios, BLEU, F1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ._native import bootstrap_indices
from ._native import bootstrap_sums as native_sums
from .bootstrap_methods import (
    Method,
    all_equal_interval,
    binomial_interval,
    check_method,
    influence_of,
    interval_of,
)
from .results import ConfidenceInterval
from .validation import FloatArray, IntArray, check_confidence, group_vector, real_vector

Statistic = Callable[..., Any]

_BLOCK = 2_000_000  # numbers in memory at once
_LEFT_OUT_GROUPS = 1000


def bootstrap(
    values: npt.ArrayLike,
    statistic: Literal["mean"] | Statistic = "mean",
    *,
    baseline: npt.ArrayLike | None = None,
    method: Method = "bca",
    confidence: float = 0.95,
    resamples: int = 10_000,
    clusters: npt.ArrayLike | None = None,
    strata: npt.ArrayLike | None = None,
    value_range: tuple[float, float] | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> ConfidenceInterval:
    """Return a bootstrap interval of a statistic of the values, or of its difference to a baseline's.

    Means are resampled natively, and means of 0 and 1 not at all: their resamples are binomial. Where all values are
    equal (100% correct, say) the interval is Clopper and Pearson's, not a point. The result depends on the seed, not
    on the number of threads.

    Args:
        values: float [n], one per example.
        statistic: ``"mean"``, or a function as numpy's: ``statistic(samples [..., m], axis=-1) -> [...]``.
        baseline: float [n], of the same examples: the interval is of statistic(values) - statistic(baseline), both
            resampled together (a paired bootstrap).
        method: ``"bca"`` (bias-corrected and accelerated), ``"percentile"`` or ``"basic"``.
        confidence: Between 0 and 1.
        resamples: How many; the ends' own error falls with its square root.
        clusters: int or str [n], equal for examples that depend on each other: whole clusters are resampled.
        strata: int or str [n]: of each stratum as many are drawn as it has.
        value_range: Bounds of a value, used where all are equal. None: (0, 1) if all are 0 or 1, (-1, 1) for
            differences of such.
        seed: Of the resamples.
        threads: Native threads; None: all, or OMP_NUM_THREADS.

    Returns:
        Labelled ``"approximate"``; ``"asymptotic"`` without resampling; ``"exact"`` where all values are equal.

    Raises:
        InvalidInputError: no values, NaN, lengths that differ, an argument out of its range.
    """
    check_confidence(confidence)
    check_method(method)
    _check_resamples(resamples)
    data = real_vector(values, "values")
    base = None if baseline is None else real_vector(baseline, "baseline", len(data))
    rows = _Rows(len(data), clusters, strata)
    if not isinstance(statistic, str):
        return _of_samples(rows, data, base, statistic, method, confidence, resamples, seed)
    if statistic != "mean":
        raise InvalidInputError(f"statistic must be 'mean' or a function, got {statistic!r}.")
    binary = _is_binary(data) and (base is None or _is_binary(base))
    if binary and value_range is None:
        value_range = (0.0, 1.0) if base is None else (-1.0, 1.0)
    if base is not None:
        data = data - base
    if data.min() == data.max():
        return all_equal_interval(float(data[0]), rows.count, value_range, confidence)
    if binary and base is None and clusters is None and strata is None:
        return binomial_interval(int(data.sum()), len(data), method, confidence)
    sums = rows.sums_of(np.stack([data, np.ones(len(data))], 1) if clusters is not None else data[:, None])
    if clusters is None:
        return _of_sums(
            rows, sums, lambda totals: totals[..., 0] / len(data), method, confidence, resamples, seed, threads
        )
    return _of_sums(rows, sums, _ratio, method, confidence, resamples, seed, threads)


def bootstrap_sums(
    sums: npt.ArrayLike,
    statistic: Callable[[FloatArray], Any],
    *,
    baseline: npt.ArrayLike | None = None,
    method: Method = "percentile",
    confidence: float = 0.95,
    resamples: int = 2000,
    clusters: npt.ArrayLike | None = None,
    strata: npt.ArrayLike | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> ConfidenceInterval:
    """Return a bootstrap interval of a statistic of column sums: of corpus BLEU, a ratio, an F1 (approximate).

    Args:
        sums: float [n, C], each example's contributions (n-gram matches and lengths, say).
        statistic: Maps column sums [..., C] to values [...].
        baseline: float [n, C], another system's of the same examples: the interval is of the difference of both
            statistics, resampled together (P. Koehn, "Statistical significance tests for machine translation
            evaluation", EMNLP 2004).
        method: See `bootstrap`.
        confidence: Between 0 and 1.
        resamples: How many.
        clusters: See `bootstrap`.
        strata: See `bootstrap`.
        seed: Of the resamples.
        threads: Native threads; None: all, or OMP_NUM_THREADS.

    Raises:
        InvalidInputError: no rows, NaN, shapes that differ, an argument out of its range.
    """
    check_confidence(confidence)
    check_method(method)
    _check_resamples(resamples)
    rows, function = paired_rows(sums, statistic, baseline)
    layout = _Rows(len(rows), clusters, strata)
    return _of_sums(layout, layout.sums_of(rows), function, method, confidence, resamples, seed, threads)


def bootstrap_ratio(
    numerators: npt.ArrayLike,
    denominators: npt.ArrayLike,
    *,
    groups: npt.ArrayLike | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of sum(numerators) / sum(denominators), resampling examples or whole groups (approximate).

    Args:
        numerators: float [n].
        denominators: float [n].
        groups: int [n], equal for examples that belong together (the blocks of one document); None: all independent.
        confidence: Between 0 and 1.
        resamples: How many.
        seed: Of the resamples.
    """
    check_confidence(confidence)
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if len(above) == 0 or len(above) != len(below):
        raise InvalidInputError(
            f"A bootstrap needs as many numerators as denominators and at least one, got {len(above)} and {len(below)}."
        )
    layout = _Rows(len(above), groups, None, name="groups")
    sums = layout.sums_of(np.stack([above, below], 1))
    # Examples of no weight (a sequence without scored tokens) say nothing; resamples of them alone would be 0 / 0.
    sums = sums[(sums != 0).any(1)]
    if len(sums) == 0:
        raise InvalidInputError("A bootstrap of a ratio needs at least one example whose denominator isn't 0.")
    replicates = _ratio(native_sums(sums, np.array([0, len(sums)]), resamples, seed))
    return percentiles(replicates, float(_ratio(sums.sum(0))), confidence)


def percentiles(replicates: FloatArray, value: float, confidence: float) -> tuple[float, float]:
    """Return the percentile interval, widened where need be to hold the value."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return min(float(low), value), max(float(high), value)


def paired_rows(
    sums: npt.ArrayLike, statistic: Callable[[FloatArray], Any], baseline: npt.ArrayLike | None
) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
    """Return rows and the statistic of their sums; with a baseline, both side by side and the difference."""
    rows = _matrix(sums, "sums")
    if baseline is None:
        return rows, lambda totals: np.asarray(statistic(totals), np.float64)
    other = _matrix(baseline, "baseline")
    if other.shape != rows.shape:
        raise InvalidInputError(f"baseline must have the shape of sums, {rows.shape}, got {other.shape}.")
    width = rows.shape[1]

    def difference(totals: FloatArray) -> FloatArray:
        mine, theirs = statistic(totals[..., :width]), statistic(totals[..., width:])
        return np.asarray(mine, np.float64) - np.asarray(theirs, np.float64)

    return np.concatenate([rows, other], 1), difference


class _Rows:
    """What is resampled: examples or clusters, sorted by stratum."""

    def __init__(
        self, n: int, clusters: npt.ArrayLike | None, strata: npt.ArrayLike | None, name: str = "clusters"
    ) -> None:
        self.cluster = None if clusters is None else group_vector(clusters, name, n)
        stratum = None if strata is None else group_vector(strata, "strata", n)
        self.count = n if self.cluster is None else int(self.cluster.max()) + 1
        if stratum is None:
            self.order: IntArray | None = None
            self.starts = np.array([0, self.count])
            return
        if self.cluster is not None:
            of_cluster = np.empty(self.count, np.int64)
            of_cluster[self.cluster] = stratum
            if (of_cluster[self.cluster] != stratum).any():
                raise InvalidInputError("Each cluster must lie in one stratum.")
            stratum = of_cluster
        self.order = np.argsort(stratum, kind="stable")
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(stratum))])

    def sums_of(self, values: FloatArray) -> FloatArray:
        """Return the column sums [count, C] of each row's examples, in the order of the strata."""
        if self.cluster is not None:
            columns = [np.bincount(self.cluster, weights=column, minlength=self.count) for column in values.T]
            values = np.stack(columns, 1)
        if self.order is not None:
            values = values[self.order]
        return np.ascontiguousarray(values, np.float64)

    def members(self) -> list[IntArray]:
        """Return the examples of each row, in the order of the strata."""
        if self.cluster is None:
            members = list(np.arange(self.count)[:, None])
        else:
            sizes = np.bincount(self.cluster)
            members = np.split(np.argsort(self.cluster, kind="stable"), np.cumsum(sizes)[:-1])
        return members if self.order is None else [members[i] for i in self.order]


def _of_sums(
    rows: _Rows,
    sums: FloatArray,
    statistic: Callable[[FloatArray], Any],
    method: Method,
    confidence: float,
    resamples: int,
    seed: int,
    threads: int | None,
) -> ConfidenceInterval:
    total = sums.sum(0)
    replicates = np.empty(resamples)
    block = max(1, _BLOCK // sums.shape[1])
    for first in range(0, resamples, block):
        drawn = native_sums(sums, rows.starts, min(block, resamples - first), seed, first=first, threads=threads)
        replicates[first : first + block] = statistic(drawn)
    return interval_of(
        replicates,
        float(statistic(total)),
        method,
        confidence,
        lambda: influence_of(np.asarray(statistic(total - sums), np.float64), rows.starts),
    )


def _of_samples(
    rows: _Rows,
    data: FloatArray,
    base: FloatArray | None,
    statistic: Statistic,
    method: Method,
    confidence: float,
    resamples: int,
    seed: int,
) -> ConfidenceInterval:
    def value_of(indices: IntArray) -> Any:
        value = statistic(data[indices], axis=-1)
        return value if base is None else value - statistic(base[indices], axis=-1)

    members = rows.members()
    together = np.concatenate(members)
    replicates = np.empty(resamples)
    block = max(1, _BLOCK // len(data))
    for first in range(0, resamples, block):
        drawn = bootstrap_indices(rows.count, rows.starts, min(block, resamples - first), seed, first=first)
        if rows.cluster is None:
            replicates[first : first + block] = value_of(together[drawn])
        else:  # of differing sizes
            for i, picked in enumerate(drawn):
                replicates[first + i] = value_of(np.concatenate([members[row] for row in picked]))

    def influence() -> FloatArray:
        if rows.count < 2:
            return np.zeros(1)
        # Of many rows, interleaved groups are left out together: the skewness is nearly the same.
        groups = np.arange(rows.count) if len(rows.starts) > 2 else np.arange(rows.count) % _LEFT_OUT_GROUPS
        row_of_example = np.repeat(groups, [len(part) for part in members])
        left_out = [float(value_of(together[row_of_example != group])) for group in range(int(groups.max()) + 1)]
        starts = rows.starts if len(rows.starts) > 2 else np.array([0, len(left_out)])
        return influence_of(np.array(left_out), starts)

    return interval_of(replicates, float(value_of(np.arange(len(data)))), method, confidence, influence)


def _ratio(totals: FloatArray) -> FloatArray:
    return np.asarray(totals[..., 0] / totals[..., 1])


def _is_binary(values: FloatArray) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _matrix(values: npt.ArrayLike, name: str) -> FloatArray:
    array = np.asarray(values, np.float64)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidInputError(f"{name} must be a matrix [n, C] of at least one row, got the shape {array.shape}.")
    if not np.isfinite(array).all():
        raise InvalidInputError(
            f"{name} must be finite, got NaN or infinity in {(~np.isfinite(array)).any(1).sum()} rows."
        )
    return array


def _check_resamples(resamples: int) -> None:
    if int(resamples) != resamples or resamples < 2:
        raise InvalidInputError(f"resamples must be a whole number of at least 2, got {resamples!r}.")
