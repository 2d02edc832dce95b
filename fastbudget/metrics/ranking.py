"""Areas under curves of scores, exact, with ties taken together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ..core.errors import InvalidInputError, one_of
from ._native import average_precision, roc_area
from .inputs import multilabel_pair, same_length, to_numpy
from .metric_protocol import FloatArray
from .probabilities import read_scores
from .registered import register
from .row_metrics import RowMetric

Average = Literal["macro", "weighted", "micro", "none"]


class _CurveArea(RowMetric):
    """An area under a curve of scores: of class 1, of each class against the rest, or of each of several labels.

    Predictions are scores [n] of class 1, [n, 2] (the second column counts), [n, classes] or [n, labels]; references
    are labels [n], or 0/1 [n, labels].

    Args:
        average: Over classes or labels: ``"macro"``, ``"weighted"`` by their frequency, ``"micro"``: all decisions in
            one ranking, or ``"none"``: one value each.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    columns: ClassVar[int] = 2

    def __init__(self, *, average: Average = "macro", threads: int | None = None) -> None:
        if average not in get_args(Average):
            raise InvalidInputError(f"average must be one of {one_of(get_args(Average))}, got {average!r}.")
        self.average = average
        self.threads = threads

    @abstractmethod
    def _area(self, scores: FloatArray, labels: FloatArray) -> float:
        """Return the area of scores [n] and labels [n], NaN where it is undefined."""

    @property
    def input_key(self) -> Hashable:
        """Scores and indicators are read the same by all."""
        return "scores and indicators"

    @property
    def state_key(self) -> Hashable:
        """All keep the same."""
        return "scores and indicators"

    def read(self, predictions: Any, references: Any) -> FloatArray:
        """Return [n, 2 C]: scores of C classes or labels, then 0/1 for each."""
        if np.ndim(references) == 2:
            scores = to_numpy(predictions, "predictions")
            _, labels = multilabel_pair(scores, references, 0.5)
            return np.hstack([np.asarray(scores, np.float64), labels])
        batch = read_scores(predictions, references)
        same_length(batch.scores, batch.labels)
        scores = np.asarray(batch.scores, np.float64)
        if scores.ndim == 1 or scores.shape[1] == 2:
            return np.column_stack([scores if scores.ndim == 1 else scores[:, 1], batch.labels])
        return np.hstack([scores, batch.labels[:, None] == np.arange(scores.shape[1])])

    def _rows(self, batch: Any) -> FloatArray:
        return np.asarray(batch)

    def _from_rows(self, rows: FloatArray) -> Any:
        scores, labels = np.hsplit(rows, 2)
        if self.average == "micro":
            return self._area(scores.ravel(), labels.ravel())
        areas = np.array([self._area(s, y) for s, y in zip(scores.T, labels.T, strict=True)])
        if self.average == "none":
            return areas
        return np.average(areas, weights=labels.sum(0) if self.average == "weighted" and labels.any() else None)

    def result(self, state: Any) -> Any:
        """Return the area.

        Raises:
            InvalidInputError: a class or label without positive or without negative examples has no curve.
        """
        value = self._from_rows(self._some(state.rows()))
        if self.average == "none":
            return value
        if np.isnan(value):
            raise InvalidInputError(
                f"{self.name or 'The area'} is undefined here: every class needs examples of it and of others. "
                "Leave out classes that don't occur."
            )
        return float(value)

    def interval(self, state: Any, confidence: float = 0.95, groups: Any = None) -> Any:
        """Return the area with a bootstrap interval over examples (approximate)."""
        if self.average == "none":
            raise InvalidInputError("One area per class has no single interval; choose an average.")
        self.result(state)
        return super().interval(state, confidence, groups)


@register("auroc", task="classification")
class RocArea(_CurveArea):
    """Area under the ROC curve: the chance that a positive scores above a negative, ties counted half."""

    def _area(self, scores: FloatArray, labels: FloatArray) -> float:
        return roc_area(scores, labels.astype(np.uint8), self.threads)


@register("average_precision", task="classification")
class AveragePrecision(_CurveArea):
    """Sum over thresholds of precision times the recall gained, without interpolation, ties taken together."""

    def _area(self, scores: FloatArray, labels: FloatArray) -> float:
        return average_precision(scores, labels.astype(np.uint8), self.threads)
