"""Metrics of a few numbers per example: means, ratios of sums, and functions of all rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..stats.proportions import share_interval
from .example_rows import ExampleRows
from .metric_protocol import BatchMetric, FloatArray, MetricValue
from .resampling import resampled_rows_interval, resampled_sums_interval


class RowMetric(BatchMetric[ExampleRows]):
    """Keeps rows float64 [n, columns], one per example; the value is a function of all rows."""

    columns: ClassVar[int] = 1

    @abstractmethod
    def _rows(self, batch: Any) -> FloatArray:
        """Return [n, columns] of a checked batch."""

    @abstractmethod
    def _from_rows(self, rows: FloatArray) -> float:
        """Return the value of at least one row."""

    def init(self) -> ExampleRows:
        """Return the state of no examples."""
        return ExampleRows(columns=self.columns)

    def add(self, state: ExampleRows, batch: Any, ids: Any = None) -> ExampleRows:
        """Add a batch from `read`."""
        rows = self._rows(batch)
        if len(rows) and not state.pieces:
            state.columns = rows.shape[1]
        if len(rows) and rows.shape[1] != state.columns:
            raise InvalidInputError(
                f"{self.name or 'The metric'} got examples of {rows.shape[1]} numbers after examples of "
                f"{state.columns}: every batch must have the same classes."
            )
        state.append(rows, ids)
        return state

    def merge(self, a: ExampleRows, b: ExampleRows) -> ExampleRows:
        """Return the examples of both, in order."""
        return a.merged(b)

    def result(self, state: ExampleRows) -> float:
        """Return the value."""
        return float(self._from_rows(self._some(state.rows())))

    def interval(
        self, state: ExampleRows, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the value with a bootstrap interval over examples, or over whole groups of them."""
        rows = self._some(state.rows())
        value = float(self._from_rows(rows))
        low, high = self._bootstrap(rows, groups, confidence, value)
        return MetricValue(
            value=value,
            low=low,
            high=high,
            confidence=confidence,
            method=f"bootstrap over {self._unit(groups)} (approximate)",
            num_examples=len(rows),
        )

    def _bootstrap(
        self, rows: FloatArray, groups: npt.NDArray[np.int64] | None, confidence: float, value: float
    ) -> tuple[float, float]:
        return resampled_rows_interval(rows, self._from_rows, value, groups=groups, confidence=confidence)

    def _unit(self, groups: npt.NDArray[np.int64] | None) -> str:
        return "examples" if groups is None else f"{len(np.unique(groups))} groups of examples"

    def _some(self, rows: FloatArray) -> FloatArray:
        if len(rows) == 0:
            raise InvalidInputError(f"{self.name or 'The metric'} needs at least one example.")
        return rows


class SumMetric(RowMetric):
    """A function of the sums of the rows' columns, so that one example's value is that of its own row."""

    @abstractmethod
    def _from_sums(self, sums: FloatArray) -> FloatArray:
        """Return values [...] of sums [..., columns + 1]; the last column is the number of examples."""

    def _from_rows(self, rows: FloatArray) -> float:
        return float(self._from_sums(exact_sums(rows)))

    def _bootstrap(
        self, rows: FloatArray, groups: npt.NDArray[np.int64] | None, confidence: float, value: float
    ) -> tuple[float, float]:
        return resampled_sums_interval(rows, self._from_sums, value, groups=groups, confidence=confidence)

    def per_example(self, predictions: Any, references: Any) -> FloatArray:
        """Return each example's own value, float64 [n]."""
        rows = self._rows(self.read(predictions, references))
        return np.asarray(self._from_sums(np.column_stack([rows, np.ones(len(rows))])), np.float64)


class MeanMetric(SumMetric):
    """The mean over examples of one number each."""

    is_mean: ClassVar[bool] = True

    def _from_sums(self, sums: FloatArray) -> FloatArray:
        return np.asarray(sums[..., 0] / sums[..., -1])

    def interval(
        self, state: ExampleRows, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the mean with Wilson's interval where every example counts 0 or 1, else with a bootstrap one."""
        rows = self._some(state.rows())
        if groups is not None or self.example_range != (0.0, 1.0) or not np.isin(rows, (0.0, 1.0)).all():
            return super().interval(state, confidence, groups)
        share = share_interval(int(rows.sum()), len(rows), confidence)
        return MetricValue(
            value=self._from_rows(rows),
            low=share.low,
            high=share.high,
            confidence=confidence,
            method=share.method,
            num_examples=len(rows),
        )


def exact_sums(rows: FloatArray) -> FloatArray:
    """Return column sums [columns + 1], correctly rounded, then the number of rows.

    Correct rounding makes the sums independent of how examples were split and ordered.
    """
    return np.array([*(math.fsum(column) for column in rows.T), len(rows)], np.float64)
