"""Errors and correlations of predicted numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar

import numpy as np

from ..core.errors import InvalidInputError
from ._native import average_ranks
from .inputs import number_pair
from .metric_protocol import FloatArray
from .registered import register
from .row_metrics import MeanMetric, RowMetric, SumMetric

NumberBatch = tuple[FloatArray, FloatArray]


class _NumberMetric(RowMetric):
    """Takes finite numbers of one shape [n] or [n, …]; nothing is broadcast."""

    @property
    def input_key(self) -> Hashable:
        """All metrics of numbers read them the same."""
        return "numbers"

    def read(self, predictions: Any, references: Any) -> NumberBatch:
        """Return the checked numbers."""
        return number_pair(predictions, references)


class _MeanError(_NumberMetric, MeanMetric):
    """The mean over examples of an error; an example of several numbers counts with their mean."""

    higher_is_better: ClassVar[bool] = False

    @abstractmethod
    def _error(self, difference: FloatArray) -> FloatArray:
        """Return what the subclass measures."""

    def _rows(self, batch: NumberBatch) -> FloatArray:
        predicted, reference = batch
        if len(predicted) == 0:
            return np.zeros((0, 1))
        errors = self._error(predicted - reference).reshape(len(predicted), -1)
        return np.asarray(errors.mean(axis=1, keepdims=True))


@register("mse", task="regression")
class MeanSquaredError(_MeanError):
    """Mean squared error."""

    def _error(self, difference: FloatArray) -> FloatArray:
        return difference**2


@register("mae", task="regression")
class MeanAbsoluteError(_MeanError):
    """Mean absolute error."""

    def _error(self, difference: FloatArray) -> FloatArray:
        return np.abs(difference)


@register("rmse", task="regression")
class RootMeanSquaredError(_NumberMetric, SumMetric):
    """Root of the mean squared error."""

    higher_is_better: ClassVar[bool] = False

    def _rows(self, batch: NumberBatch) -> FloatArray:
        return MeanSquaredError()._rows(batch)

    def _from_sums(self, sums: FloatArray) -> FloatArray:
        return np.sqrt(sums[..., 0] / sums[..., -1])


class _PairMetric(_NumberMetric):
    """A function of all pairs (prediction, reference), one number each."""

    columns: ClassVar[int] = 2

    def read(self, predictions: Any, references: Any) -> NumberBatch:
        """Return the checked numbers [n]."""
        predicted, reference = super().read(predictions, references)
        if predicted.ndim != 1:
            raise InvalidInputError(
                f"{self.name or 'The metric'} takes one number per example, got shape {list(predicted.shape)}."
            )
        return predicted, reference

    @property
    def input_key(self) -> Hashable:
        """All metrics of pairs read them the same."""
        return "number pairs"

    @property
    def state_key(self) -> Hashable:
        """All metrics of pairs keep the same."""
        return "number pairs"

    def _rows(self, batch: NumberBatch) -> FloatArray:
        return np.column_stack(batch)

    @abstractmethod
    def _from_pairs(self, predicted: FloatArray, reference: FloatArray) -> float:
        """Return the value; NaN: undefined."""

    def _from_rows(self, rows: FloatArray) -> float:
        return self._from_pairs(rows[:, 0], rows[:, 1])

    def result(self, state: Any) -> float:
        """Return the value.

        Raises:
            InvalidInputError: it is undefined: fewer than two examples, or a side that is constant.
        """
        value = super().result(state)
        if np.isnan(value):
            raise InvalidInputError(
                f"{self.name or 'The metric'} is undefined here: it needs two examples or more that aren't all equal."
            )
        return value


@register("r2", task="regression")
class RSquared(_PairMetric):
    """Coefficient of determination: 1 - squared errors / squared deviations of the references from their mean."""

    def _from_pairs(self, predicted: FloatArray, reference: FloatArray) -> float:
        total = np.square(reference - reference.mean()).sum()
        return float(1 - np.square(reference - predicted).sum() / total) if total > 0 else np.nan


@register("pearson", task="regression")
class PearsonCorrelation(_PairMetric):
    """Pearson's correlation."""

    def _from_pairs(self, predicted: FloatArray, reference: FloatArray) -> float:
        return _pearson(predicted, reference)


@register("spearman", task="regression")
class SpearmanCorrelation(_PairMetric):
    """Spearman's rank correlation; equal numbers share the mean of their ranks."""

    def _from_pairs(self, predicted: FloatArray, reference: FloatArray) -> float:
        return _pearson(average_ranks(predicted), average_ranks(reference))


def _pearson(a: FloatArray, b: FloatArray) -> float:
    if (a == a[0]).all() or (b == b[0]).all():
        return float("nan")
    # Scaled first, so that squares of very large or small numbers neither overflow nor vanish.
    a, b = (side - side.mean() for side in (a, b))
    a, b = a / np.abs(a).max(), b / np.abs(b).max()
    return float(np.clip(a @ b / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))
