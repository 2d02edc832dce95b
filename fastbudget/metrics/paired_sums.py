"""Metrics of a whole set as functions of sums over its examples, so that two systems can be resampled together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .classification import LabelMetric
from .label_counts import Margins
from .metric_protocol import FloatArray, Metric
from .row_metrics import SumMetric

_MOST_SUMMANDS = 50_000_000  # numbers of both systems


@dataclass(frozen=True, kw_only=True, eq=False)
class Contributions:
    """What each example contributes to a metric of the whole set.

    Args:
        metric: One of sums (BLEU, RMSE), or of class labels (macro-F1).
        rows: Its rows [n, K]; of labels int64 [n, 2], predictions and references.
    """

    metric: Metric[Any]
    rows: npt.NDArray[Any]


def contributions_of(metric: Metric[Any], state: Any, labels: npt.NDArray[np.int64] | None) -> Contributions | None:
    """Return what examples contributed to a state, in their order; None for metrics that aren't functions of sums.

    Args:
        metric: The metric.
        state: Of all examples, each added without an id.
        labels: int64 [n, 2], where they are single class labels.
    """
    if isinstance(metric, SumMetric):
        return Contributions(metric=metric, rows=state.rows())
    if isinstance(metric, LabelMetric) and labels is not None:
        return Contributions(metric=metric, rows=labels)
    return None


def summed_pair(
    mine: Contributions, theirs: Contributions
) -> tuple[FloatArray, FloatArray, Callable[[FloatArray], FloatArray]] | None:
    """Return what the examples of both add up to, float64 [n, C] each, and the metric as a function of the sums.

    Where sums leave the metric undefined (a resample without one of two classes, say) it is that of both together.
    None: so many classes that it would take too much memory.
    """
    metric = mine.metric
    value_of: Callable[[FloatArray], FloatArray]
    if isinstance(metric, SumMetric):
        first, second = (np.column_stack([part.rows, np.ones(len(part.rows))]) for part in (mine, theirs))
        value_of = metric._from_sums
    else:
        assert isinstance(metric, LabelMetric)
        classes = 1 + int(max(mine.rows.max(), theirs.rows.max()))
        if 2 * len(mine.rows) * (3 * classes + 1) > _MOST_SUMMANDS:
            return None
        first, second = (_label_summands(part.rows, classes) for part in (mine, theirs))
        value_of = _from_label_sums(metric)

    def defined(sums: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = value_of(sums)
            return np.where(np.isnan(values), value_of(first.sum(0) + second.sum(0)), values)

    return first, second, defined


def _label_summands(labels: npt.NDArray[np.int64], classes: int) -> FloatArray:
    """Return [n, 3 classes + 1]: the class that both are, the predicted one and the reference as 1 of 0, and 1."""
    rows = np.arange(len(labels))
    predicted, reference = labels.T
    summands = np.zeros((len(labels), 3 * classes + 1))
    summands[rows, predicted] = predicted == reference
    summands[rows, classes + predicted] = 1
    summands[rows, 2 * classes + reference] = 1
    summands[:, -1] = 1
    return summands


def _from_label_sums(metric: LabelMetric) -> Callable[[FloatArray], FloatArray]:
    def value_of(sums: FloatArray) -> FloatArray:
        counts = np.asarray(sums, np.int64)
        both, predicted, reference = np.split(counts[..., :-1], 3, axis=-1)
        return metric._from_margins(Margins(both, predicted, reference, counts[..., -1]))

    return value_of
