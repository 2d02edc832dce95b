"""Accuracy, precision, recall and F1 of class labels, counted natively on all cores."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, one_of
from ..stats import bootstrap_counts, wilson_interval
from ._native import Counts, add_confusion, count_classes, label_range
from .arrays import label_pair
from .metric_protocol import Metric, MetricValue
from .registered import register

Average = Literal["binary", "micro", "macro", "weighted"]

# Errors and successes that resampling adds, as Wilson's interval does for a proportion: a class without errors in the
# sample still has some in the world.
_PSEUDO_ERRORS = 2.0

_MOST_CLASSES = 4096


class _ConfusionMetric(Metric[Counts]):
    """A metric of the confusion matrix int64 [C, C], row = reference, column = prediction.

    Args:
        num_classes: Labels must be in [0, num_classes). None: the matrix grows to the largest label seen.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    def __init__(self, *, num_classes: int | None = None, threads: int | None = None) -> None:
        if num_classes is not None and not 1 <= num_classes <= _MOST_CLASSES:
            raise InvalidInputError(f"num_classes must be between 1 and {_MOST_CLASSES}, got {num_classes}.")
        self.num_classes = num_classes
        self.threads = threads

    @abstractmethod
    def _from_margins(self, both: Counts, predicted: Counts, reference: Counts) -> npt.NDArray[np.float64]:
        """Return the value from per-class counts [..., C] each."""

    def init(self) -> Counts:
        """Return an empty confusion matrix."""
        size = self.num_classes or 0
        return np.zeros((size, size), np.int64)

    def update(self, state: Counts, predictions: Any, references: Any) -> Counts:
        """Add predicted labels [n] (or scores [n, classes]) and reference labels [n]."""
        predicted, reference = label_pair(predictions, references)
        if len(predicted) == 0:
            return state
        if self.num_classes is None:
            largest = max(label_range(predicted)[1], label_range(reference)[1])
            if largest >= _MOST_CLASSES:
                raise InvalidInputError(
                    f"A label is {largest}; a confusion matrix is kept for up to {_MOST_CLASSES} classes. "
                    "Call the metric on all labels at once instead: that needs no matrix."
                )
            state = _padded(state, largest + 1)
        add_confusion(predicted, reference, state, self.threads)
        return state

    def merge(self, a: Counts, b: Counts) -> Counts:
        """Return the sum, padded to the larger number of classes."""
        size = max(len(a), len(b))
        return _padded(a, size) + _padded(b, size)

    def result(self, state: Counts) -> float:
        """Return the value of a confusion matrix."""
        if state.sum() == 0:
            raise InvalidInputError(f"{self.name or 'The metric'} needs at least one example.")
        return float(self._from_margins(np.diagonal(state), state.sum(0), state.sum(1)))

    def __call__(self, predictions: Any, references: Any) -> float:
        """Return the value over all labels, without building a matrix."""
        predicted, reference = label_pair(predictions, references)
        if len(predicted) == 0:
            raise InvalidInputError(f"{self.name or 'The metric'} needs at least one example.")
        return float(self._from_margins(*count_classes(predicted, reference, self.num_classes, self.threads)))

    def interval(
        self, state: Counts, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the value with a bootstrap interval over examples (approximate)."""
        if groups is not None:
            raise InvalidInputError(f"{self.name} keeps counts, not examples, so it can't take groups.")
        value = self.result(state)
        cells = _Resampled(state)
        low, high = bootstrap_counts(
            cells.counts,
            lambda drawn: self._from_margins(*cells.margins(drawn)),
            pseudo_counts=cells.pseudo_counts,
            confidence=confidence,
        )
        return MetricValue(
            value=value,
            low=low,
            high=high,
            confidence=confidence,
            method="bootstrap over examples (approximate)",
            num_examples=int(state.sum()),
        )


def _padded(matrix: Counts, size: int) -> Counts:
    if len(matrix) >= size:
        return matrix
    grown = np.zeros((size, size), np.int64)
    grown[: len(matrix), : len(matrix)] = matrix
    return grown


class _Resampled:
    """The cells of a confusion matrix that hold examples, for resampling: the cost follows them, not C².

    One more category stands for the pseudo-examples: of a class drawn by its frequency among the references, half of
    them right and half predicted as another class seen.
    """

    def __init__(self, matrix: Counts) -> None:
        rows, columns = np.nonzero(matrix)
        # Classes never seen don't count anywhere; a matrix of two is kept whole, for the binary average.
        self._classes = np.arange(len(matrix)) if len(matrix) <= 2 else np.union1d(rows, columns)
        self._rows, self._columns = (np.searchsorted(self._classes, labels) for labels in (rows, columns))
        self._seen = np.union1d(self._rows, self._columns)
        self._share = (matrix.sum(1) / matrix.sum())[self._classes]
        self._generator = np.random.default_rng(0)
        self.counts = np.append(matrix[rows, columns], 0)
        self.pseudo_counts = np.zeros(len(self.counts))
        if len(self._seen) > 1:
            self.pseudo_counts[-1] = 2 * _PSEUDO_ERRORS

    def margins(self, drawn: Counts) -> tuple[Counts, Counts, Counts]:
        """Return hits, predictions and references per class, int64 [..., C] each, of counts per cell [..., K + 1]."""
        cells = drawn[..., :-1].reshape(-1, len(self._rows))
        shape = (*drawn.shape[:-1], len(self._classes))
        resample = np.repeat(np.arange(len(cells)), drawn[..., -1].ravel())
        rows, columns = self._pseudo_examples(len(resample))

        def per_class(labels: Counts, weights: Counts, extra: Counts, chosen: Any = slice(None)) -> Counts:
            where = np.arange(len(cells))[:, None] * shape[-1] + labels
            size = len(cells) * shape[-1]
            real = np.bincount(where.ravel(), weights.ravel(), size)
            pseudo = np.bincount((resample * shape[-1] + extra)[chosen], minlength=size)
            return (real + pseudo).astype(np.int64).reshape(shape)

        right = self._rows == self._columns
        return (
            per_class(self._rows[right], cells[:, right], rows, rows == columns),
            per_class(self._columns, cells, columns),
            per_class(self._rows, cells, rows),
        )

    def _pseudo_examples(self, n: int) -> tuple[Counts, Counts]:
        rows = self._generator.choice(len(self._share), n, p=self._share)
        if n == 0:
            return rows, rows
        other = self._generator.integers(0, len(self._seen) - 1, n)
        other += other >= np.searchsorted(self._seen, rows)
        return rows, np.where(self._generator.random(n) < 0.5, rows, self._seen[other])


@register("accuracy", task="classification")
class Accuracy(_ConfusionMetric):
    """Share of examples whose predicted class is the reference."""

    def _from_margins(self, both: Counts, predicted: Counts, reference: Counts) -> npt.NDArray[np.float64]:
        return np.asarray(both.sum(-1) / reference.sum(-1))

    def interval(
        self, state: Counts, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the accuracy with Wilson's interval."""
        if groups is not None:
            raise InvalidInputError("accuracy keeps counts, not examples, so it can't take groups.")
        value, total = self.result(state), int(state.sum())
        low, high = wilson_interval(int(np.trace(state)), total, confidence)
        return MetricValue(value=value, low=low, high=high, confidence=confidence, method="Wilson", num_examples=total)


def _divide(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """a / b, and 0 where b is 0: a class never predicted has precision 0."""
    quotient: npt.NDArray[np.float64] = np.zeros(np.broadcast(a, b).shape)
    np.divide(a, b, out=quotient, where=b > 0)
    return quotient


class _AveragedMetric(_ConfusionMetric):
    """A ratio per class, averaged. Classes absent from predictions and references are left out, as in scikit-learn.

    Args:
        average: ``"macro"``, ``"micro"``, ``"weighted"`` by reference frequency, or ``"binary"``: class 1 of 0, 1.
        num_classes: See `Accuracy`.
        threads: See `Accuracy`.
    """

    def __init__(
        self, *, average: Average = "macro", num_classes: int | None = None, threads: int | None = None
    ) -> None:
        if average not in get_args(Average):
            raise InvalidInputError(f"average must be one of {one_of(get_args(Average))}, got {average!r}.")
        super().__init__(num_classes=num_classes, threads=threads)
        self.average = average

    @abstractmethod
    def _terms(
        self, both: npt.NDArray[Any], predicted: npt.NDArray[Any], reference: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return numerator and denominator, elementwise."""

    def _from_margins(self, both: Counts, predicted: Counts, reference: Counts) -> npt.NDArray[np.float64]:
        if self.average == "binary":
            if both.shape[-1] > 2:
                raise InvalidInputError(
                    f"A binary average takes the labels 0 and 1, got labels up to {both.shape[-1] - 1}. "
                    "Use the macro, micro or weighted average."
                )
            if both.shape[-1] < 2:  # only class 0 was seen
                return np.zeros(both.shape[:-1])
            return _divide(*self._terms(both[..., 1], predicted[..., 1], reference[..., 1]))
        if self.average == "micro":
            return _divide(*self._terms(both.sum(-1), predicted.sum(-1), reference.sum(-1)))
        per_class = _divide(*self._terms(both, predicted, reference))
        weight: Counts = reference if self.average == "weighted" else ((predicted + reference) > 0).astype(np.int64)
        return _divide((per_class * weight).sum(-1), weight.sum(-1))


class Precision(_AveragedMetric):
    """Correct among predicted: both / predicted."""

    def _terms(
        self, both: npt.NDArray[Any], predicted: npt.NDArray[Any], reference: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return both, predicted


class Recall(_AveragedMetric):
    """Found among present: both / reference."""

    def _terms(
        self, both: npt.NDArray[Any], predicted: npt.NDArray[Any], reference: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return both, reference


class F1(_AveragedMetric):
    """Harmonic mean of precision and recall: 2 both / (predicted + reference)."""

    def _terms(
        self, both: npt.NDArray[Any], predicted: npt.NDArray[Any], reference: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return 2 * both, predicted + reference


def _register_averages() -> None:
    for base, family in (("precision", Precision), ("recall", Recall), ("f1", F1)):
        for average in get_args(Average):

            def make(
                *,
                num_classes: int | None = None,
                threads: int | None = None,
                _family: type[_AveragedMetric] = family,
                _average: Average = average,
            ) -> Metric[Any]:
                return _family(average=_average, num_classes=num_classes, threads=threads)

            register(f"{base}_{average}", task="classification")(make)


_register_averages()
