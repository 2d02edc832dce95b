"""Metrics of class scores and probabilities: top-k accuracy, Brier score, log loss, calibration error."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .inputs import as_labels, same_length, to_numpy
from .metric_protocol import FloatArray
from .registered import register
from .row_metrics import MeanMetric, RowMetric

_SUM_TOLERANCE = 1e-2  # probabilities of low precision; logits and percentages are farther off


@dataclass(frozen=True)
class ScoreBatch:
    """Scores float [n, C], or [n] of class 1 of 0 and 1, and labels int [n]."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]

    def probabilities(self) -> FloatArray:
        """Return probabilities float64 [n, C], C >= 2.

        Raises:
            InvalidInputError: numbers outside [0, 1], or rows that don't add up to 1.
        """
        values = np.asarray(self.scores, np.float64)
        wrong = (values < -1e-6) | (values > 1 + 1e-6)
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            raise InvalidInputError(
                f"predictions[{row}] holds {values[wrong][0]:.4g}: probabilities lie in [0, 1]. "
                "Apply softmax to logits."
            )
        if values.ndim == 1:
            return np.column_stack([1 - values, values])
        off = np.abs(values.sum(1) - 1)
        if len(off) and off.max() > _SUM_TOLERANCE:
            row = int(off.argmax())
            raise InvalidInputError(
                f"predictions[{row}] adds up to {values[row].sum():.4g}; the probabilities of all classes add up to 1."
            )
        return values


def read_scores(predictions: Any, references: Any) -> ScoreBatch:
    """Return checked scores and labels.

    Raises:
        InvalidInputError: shapes that don't match, NaN, or a label outside the classes scored.
    """
    scores, labels = to_numpy(predictions, "predictions"), to_numpy(references, "references")
    if scores.ndim not in (1, 2) or scores.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"predictions must be scores [n, classes], or [n] of class 1, got shape {list(scores.shape)} of "
            f"{scores.dtype}."
        )
    if labels.ndim != 1:
        raise InvalidInputError(f"references must be class labels of shape [n], got shape {list(labels.shape)}.")
    same_length(scores, labels)
    if np.isnan(scores).any():
        row = int(np.argwhere(np.isnan(scores))[0][0])
        raise InvalidInputError(f"predictions[{row}] holds NaN scores.")
    labels = as_labels(labels, "references")
    classes = scores.shape[1] if scores.ndim == 2 else 2
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise InvalidInputError(
            f"references[{row}] is {labels[row]}, but predictions hold scores of {classes} classes."
        )
    return ScoreBatch(scores, labels)


class _ScoreMetric(RowMetric):
    @property
    def input_key(self) -> Hashable:
        """Scores are read the same by all."""
        return "scores"

    def read(self, predictions: Any, references: Any) -> ScoreBatch:
        """Return the checked scores and labels."""
        return read_scores(predictions, references)


@register("top_k_accuracy", task="classification")
class TopKAccuracy(_ScoreMetric, MeanMetric):
    """Share of examples whose class is among the k best scores; of equal scores the higher class counts as better.

    Args:
        k: At least 1.
    """

    example_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def __init__(self, *, k: int = 5) -> None:
        if k < 1:
            raise InvalidInputError(f"k must be at least 1, got {k}.")
        self.k = k

    def _rows(self, batch: ScoreBatch) -> FloatArray:
        if batch.scores.ndim != 2:
            raise InvalidInputError("top_k_accuracy needs scores [n, classes].")
        labels = np.asarray(batch.labels, np.int64)
        own = np.take_along_axis(batch.scores, labels[:, None], 1)
        later = np.arange(batch.scores.shape[1]) > labels[:, None]
        better = (batch.scores > own).sum(1) + ((batch.scores == own) & later).sum(1)
        return np.asarray((better < self.k)[:, None], np.float64)


@register("brier", task="classification")
class BrierScore(_ScoreMetric, MeanMetric):
    """Mean squared error of probabilities: of class 1 where there are two classes, summed over classes above that.

    Source: G. W. Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78
    (1950), 1-3; halved for two classes, as is usual now.
    """

    higher_is_better: ClassVar[bool] = False
    example_range: ClassVar[tuple[float, float] | None] = (0.0, 2.0)

    def _rows(self, batch: ScoreBatch) -> FloatArray:
        errors = batch.probabilities().copy()
        errors[np.arange(len(errors)), np.asarray(batch.labels, np.int64)] -= 1
        squares = np.square(errors).sum(1, keepdims=True)
        return np.asarray(squares / 2 if errors.shape[1] == 2 else squares)


@register("log_loss", task="classification")
class LogLoss(_ScoreMetric, MeanMetric):
    """Mean negative log-probability of the true class, in nats; probabilities are at least their type's epsilon."""

    higher_is_better: ClassVar[bool] = False

    def _rows(self, batch: ScoreBatch) -> FloatArray:
        epsilon = np.finfo(batch.scores.dtype if batch.scores.dtype.kind == "f" else np.float64).eps
        probabilities = np.clip(batch.probabilities(), epsilon, 1 - epsilon)
        own = np.take_along_axis(probabilities, np.asarray(batch.labels, np.int64)[:, None], 1)
        return np.asarray(-np.log(own))


@register("ece", task="classification")
class ExpectedCalibrationError(_ScoreMetric):
    """Mean gap between confidence and accuracy over bins of equal width (a, b], weighted by their examples.

    With scores [n, classes] the confidence is the best class's probability; with [n] it is that of class 1, and its
    accuracy is the share of class 1. Source: C. Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.

    Args:
        bins: How many.
    """

    columns: ClassVar[int] = 2
    higher_is_better: ClassVar[bool] = False

    def __init__(self, *, bins: int = 15) -> None:
        if bins < 1:
            raise InvalidInputError(f"bins must be at least 1, got {bins}.")
        self.bins = bins

    def _rows(self, batch: ScoreBatch) -> FloatArray:
        probabilities = batch.probabilities()
        if batch.scores.ndim == 1:
            return np.column_stack([probabilities[:, 1], np.asarray(batch.labels, np.float64)])
        best = probabilities.argmax(1)
        return np.column_stack([probabilities.max(1), best == batch.labels])

    def _from_rows(self, rows: FloatArray) -> float:
        where = np.clip(np.ceil(rows[:, 0] * self.bins).astype(np.int64) - 1, 0, self.bins - 1)
        gap = np.bincount(where, rows[:, 1] - rows[:, 0], self.bins)
        return float(np.abs(gap).sum() / len(rows))
