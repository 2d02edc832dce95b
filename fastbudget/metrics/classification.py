"""Metrics of predicted class labels, counted natively on all cores: accuracy, precision, recall, F1 and their kin."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, one_of
from ..stats import bootstrap_counts
from ..stats.proportions import share_interval
from ._native import Counts
from .confusion_resampling import ResampledConfusion
from .label_counts import (
    MOST_CLASSES,
    LabelBatch,
    LabelCounts,
    Margins,
    count_labels,
    margins_of,
    multilabel_margins,
    read_labels,
)
from .metric_protocol import BatchMetric, FloatArray, MetricValue
from .registered import register
from .resampling import resampled_rows_interval

Average = Literal["binary", "micro", "macro", "weighted", "samples", "none"]


class LabelMetric(BatchMetric[LabelCounts]):
    """A metric counted from predicted and reference labels.

    Predictions are class labels [n] or float scores [n, classes], whose best class counts; references are labels [n].
    References 0/1 [n, labels] say that an example may have several labels; predictions then have the same shape, 0/1
    or float scores.

    Args:
        num_classes: Labels must be in [0, num_classes). None: the matrix grows to the largest label seen.
        threshold: Scores of several labels at or above it count as predicted.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    takes_multilabel: ClassVar[bool] = False

    def __init__(self, *, num_classes: int | None = None, threshold: float = 0.5, threads: int | None = None) -> None:
        if num_classes is not None and not 1 <= num_classes <= MOST_CLASSES:
            raise InvalidInputError(f"num_classes must be between 1 and {MOST_CLASSES}, got {num_classes}.")
        self.num_classes = num_classes
        self.threshold = threshold
        self.threads = threads

    @abstractmethod
    def _from_margins(self, margins: Margins, multilabel: bool = False) -> FloatArray:
        """Return values [...] of margins [..., C]; NaN: undefined."""

    @property
    def input_key(self) -> Hashable:
        """Labels are read the same by all metrics of one threshold."""
        return ("labels", self.threshold)

    @property
    def state_key(self) -> Hashable:
        """One count serves all metrics of labels."""
        return ("labels", self.threshold, self.num_classes)

    def init(self) -> LabelCounts:
        """Return empty counts."""
        size = self.num_classes or 0
        return LabelCounts(matrix=np.zeros((size, size), np.int64))

    def read(self, predictions: Any, references: Any) -> LabelBatch:
        """Return the checked labels."""
        batch = read_labels(predictions, references, self.threshold)
        if batch.multilabel and not self.takes_multilabel:
            raise InvalidInputError(
                f"{self.name or 'The metric'} takes one label per example: references must be class labels of shape "
                f"[n], got shape {list(batch.reference.shape)}."
            )
        return batch

    def add(self, state: LabelCounts, batch: LabelBatch, ids: Any = None) -> LabelCounts:
        """Add labels from `read`."""
        state.add(batch, ids, self.num_classes, self.threads)
        return state

    def merge(self, a: LabelCounts, b: LabelCounts) -> LabelCounts:
        """Return the sum, padded to the larger number of classes."""
        return a.merged(b)

    def result(self, state: LabelCounts | Counts) -> Any:
        """Return the value of counts, or of a confusion matrix [C, C]."""
        state = LabelCounts.of(state)
        if state.multilabel:
            return self._defined(self._from_label_rows(state.rows()))
        return self._value(margins_of(state.confusion()))

    def __call__(self, predictions: Any, references: Any) -> Any:
        """Return the value over all labels, without building a matrix."""
        batch = self.read(predictions, references)
        if batch.multilabel:
            return self.result(self.add(self.init(), batch))
        return self._value(count_labels(batch, self.num_classes, self.threads))

    def interval(
        self, state: LabelCounts | Counts, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the value with a bootstrap interval over examples (approximate)."""
        state = LabelCounts.of(state)
        value = self.result(state)
        if state.multilabel:
            rows = state.rows()
            n = len(rows)
            low, high = resampled_rows_interval(
                rows,
                lambda drawn: float(self._from_label_rows(drawn)),
                value,
                groups=groups,
                confidence=confidence,
            )
        elif groups is not None:
            raise InvalidInputError(f"{self.name} keeps counts, not examples, so it can't take groups.")
        else:
            matrix = state.confusion()
            n = int(matrix.sum())
            low, high = self._count_interval(matrix, confidence)
        method = "bootstrap over examples (approximate)"
        return MetricValue(value=value, low=low, high=high, confidence=confidence, method=method, num_examples=n)

    def _count_interval(self, matrix: Counts, confidence: float) -> tuple[float, float]:
        cells = ResampledConfusion(matrix)

        def statistic(drawn: Counts) -> FloatArray:
            # Where a resample leaves the value undefined, it shows nothing beyond chance.
            return np.nan_to_num(self._from_margins(cells.margins(drawn)))

        return bootstrap_counts(cells.counts, statistic, pseudo_counts=cells.pseudo_counts, confidence=confidence)

    def _from_label_rows(self, rows: npt.NDArray[np.uint8]) -> FloatArray:
        if len(rows) == 0:
            raise InvalidInputError(f"{self.name or 'The metric'} needs at least one example.")
        return self._from_margins(multilabel_margins(rows), multilabel=True)

    def _value(self, margins: Margins) -> Any:
        if margins.n == 0:
            raise InvalidInputError(f"{self.name or 'The metric'} needs at least one example.")
        return self._defined(self._from_margins(margins))

    def _defined(self, value: FloatArray) -> Any:
        if np.ndim(value):
            return value
        if np.isnan(value):
            raise InvalidInputError(f"{self.name or 'The metric'} is undefined here: all labels are of one class.")
        return float(value)


@register("accuracy", task="classification")
class Accuracy(LabelMetric):
    """Share of examples whose predicted class is the reference; of several labels, those that are all right."""

    is_mean = True
    example_range = (0.0, 1.0)
    takes_multilabel = True

    def _from_margins(self, margins: Margins, multilabel: bool = False) -> FloatArray:
        return np.asarray(margins.both.sum(-1) / margins.n)

    def _from_label_rows(self, rows: npt.NDArray[np.uint8]) -> FloatArray:
        if len(rows) == 0:
            raise InvalidInputError("accuracy needs at least one example.")
        predicted, reference = np.hsplit(rows, 2)
        return np.asarray((predicted == reference).all(1).mean())

    def interval(
        self, state: LabelCounts | Counts, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the accuracy with Wilson's interval, or Clopper and Pearson's where all or none are right."""
        if groups is not None:
            return super().interval(state, confidence, groups)
        state = LabelCounts.of(state)
        value = self.result(state)
        total = len(state.rows()) if state.multilabel else int(state.confusion().sum())
        share = share_interval(round(value * total), total, confidence)
        return MetricValue(
            value=value,
            low=share.low,
            high=share.high,
            confidence=confidence,
            method=share.method,
            num_examples=total,
        )

    def per_example(self, predictions: Any, references: Any) -> FloatArray:
        """Return 1 where the prediction is right and 0 where it isn't, float64 [n]."""
        batch = self.read(predictions, references)
        if not batch.multilabel:
            count_labels(batch, self.num_classes, self.threads)  # labels out of range are an error here too
        right = batch.predicted == batch.reference
        return np.asarray(right.all(1) if batch.multilabel else _on_cpu(right), np.float64)


def _on_cpu(values: Any) -> Any:
    return values.cpu().numpy() if hasattr(values, "detach") else values


@register("confusion_matrix", task="classification")
class ConfusionMatrix(LabelMetric):
    """Counts int64 [C, C]: row = reference, column = prediction."""

    def _from_margins(self, margins: Margins, multilabel: bool = False) -> FloatArray:
        raise InvalidInputError("A confusion matrix has no single value; use its result.")

    def result(self, state: LabelCounts | Counts) -> Counts:
        """Return the matrix."""
        return LabelCounts.of(state).confusion().copy()

    def __call__(self, predictions: Any, references: Any) -> Counts:
        """Return the matrix of all labels."""
        return self.result(self.update(self.init(), predictions, references))

    def interval(
        self, state: LabelCounts | Counts, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Raise InvalidInputError: a matrix has no interval."""
        raise InvalidInputError("A confusion matrix has no interval; take a metric of one number.")


def _divide(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> FloatArray:
    """a / b, and 0 where b is 0: a class never predicted has precision 0."""
    quotient: FloatArray = np.zeros(np.broadcast(a, b).shape)
    np.divide(a, b, out=quotient, where=np.asarray(b) > 0)
    return quotient


@register("balanced_accuracy", task="classification")
class BalancedAccuracy(LabelMetric):
    """Mean recall of the classes that the references hold, as in scikit-learn."""

    def _from_margins(self, margins: Margins, multilabel: bool = False) -> FloatArray:
        present = margins.reference > 0
        return _divide(_divide(margins.both, margins.reference).sum(-1), present.sum(-1))


@register("mcc", task="classification")
class MatthewsCorrelation(LabelMetric):
    """Matthews' correlation coefficient, for any number of classes; 0 where a side is constant, as in scikit-learn.

    Source: J. Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient", Computational
    Biology and Chemistry 28 (2004), 367-374.
    """

    def _from_margins(self, margins: Margins, multilabel: bool = False) -> FloatArray:
        n, predicted, reference = (np.asarray(x, np.float64) for x in (margins.n, margins.predicted, margins.reference))
        covariance = margins.both.sum(-1) * n - (predicted * reference).sum(-1)
        spread = (n * n - (predicted**2).sum(-1)) * (n * n - (reference**2).sum(-1))
        return _divide(covariance, np.sqrt(spread))


@register("cohen_kappa", task="classification")
class CohenKappa(LabelMetric):
    """Agreement beyond chance between predictions and references; undefined where both hold one class only.

    Source: J. Cohen, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement 20
    (1960), 37-46.
    """

    def _from_margins(self, margins: Margins, multilabel: bool = False) -> FloatArray:
        n = np.asarray(margins.n, np.float64)
        observed = margins.both.sum(-1) / n
        chance = (margins.predicted.astype(np.float64) * margins.reference).sum(-1) / n**2
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((observed - chance) / (1 - chance))


class AveragedMetric(LabelMetric):
    """A ratio per class, averaged. Classes absent from predictions and references are left out, as in scikit-learn.

    Args:
        average: ``"macro"``, ``"micro"``, ``"weighted"`` by reference frequency, ``"binary"``: class 1 of 0 and 1,
            ``"samples"``: the mean over examples of several labels, or ``"none"``: one value per class.
        num_classes: See `LabelMetric`.
        threshold: See `LabelMetric`.
        threads: See `LabelMetric`.
    """

    takes_multilabel = True

    def __init__(
        self,
        *,
        average: Average = "macro",
        num_classes: int | None = None,
        threshold: float = 0.5,
        threads: int | None = None,
    ) -> None:
        if average not in get_args(Average):
            raise InvalidInputError(f"average must be one of {one_of(get_args(Average))}, got {average!r}.")
        super().__init__(num_classes=num_classes, threshold=threshold, threads=threads)
        self.average = average

    @abstractmethod
    def _terms(self, both: Any, predicted: Any, reference: Any, n: Any) -> tuple[Any, Any]:
        """Return numerator and denominator, elementwise."""

    def _from_margins(self, margins: Margins, multilabel: bool = False) -> FloatArray:
        both, predicted, reference = margins.both, margins.predicted, margins.reference
        n = np.asarray(margins.n)[..., None]
        if self.average == "binary":
            if both.shape[-1] > 2 or multilabel:
                raise InvalidInputError(
                    f"A binary average takes the labels 0 and 1, got labels up to {both.shape[-1] - 1}. "
                    "Use the macro, micro or weighted average."
                )
            if both.shape[-1] < 2:  # only class 0 was seen
                both, predicted, reference = (np.zeros((*both.shape[:-1], 2), np.int64),) * 3
            return _divide(*self._terms(both[..., 1], predicted[..., 1], reference[..., 1], n[..., 0]))
        if self.average == "samples":
            raise InvalidInputError(
                "The samples average is for examples of several labels: references 0/1 [n, labels]."
            )
        if self.average == "micro":
            terms = self._terms(both, predicted, reference, n)
            return _divide(*(np.broadcast_to(term, both.shape).sum(-1) for term in terms))
        per_class = _divide(*self._terms(both, predicted, reference, n))
        if self.average == "none":
            return per_class
        weight: Counts = reference
        if self.average == "macro":
            weight = np.ones_like(reference) if multilabel else ((predicted + reference) > 0).astype(np.int64)
        return _divide((per_class * weight).sum(-1), weight.sum(-1))

    def _from_label_rows(self, rows: npt.NDArray[np.uint8]) -> FloatArray:
        if self.average != "samples" or len(rows) == 0:
            return super()._from_label_rows(rows)
        predicted, reference = np.hsplit(rows.astype(np.int64), 2)
        both, total, wanted = (part.sum(1) for part in (predicted * reference, predicted, reference))
        return np.asarray(_divide(*self._terms(both, total, wanted, predicted.shape[1])).mean())

    def interval(
        self, state: LabelCounts | Counts, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the average with a bootstrap interval over examples (approximate)."""
        if self.average == "none":
            raise InvalidInputError("One value per class has no single interval; choose an average.")
        return super().interval(state, confidence, groups)


@register("precision", task="classification")
class Precision(AveragedMetric):
    """Correct among predicted: both / predicted."""

    def _terms(self, both: Any, predicted: Any, reference: Any, n: Any) -> tuple[Any, Any]:
        return both, predicted


@register("recall", task="classification")
class Recall(AveragedMetric):
    """Found among present: both / reference."""

    def _terms(self, both: Any, predicted: Any, reference: Any, n: Any) -> tuple[Any, Any]:
        return both, reference


@register("f1", task="classification")
class F1(AveragedMetric):
    """Harmonic mean of precision and recall: 2 both / (predicted + reference)."""

    def _terms(self, both: Any, predicted: Any, reference: Any, n: Any) -> tuple[Any, Any]:
        return 2 * both, predicted + reference


@register("specificity", task="classification")
class Specificity(AveragedMetric):
    """Left alone among absent: true negatives / (true negatives + false positives)."""

    def _terms(self, both: Any, predicted: Any, reference: Any, n: Any) -> tuple[Any, Any]:
        return n - predicted - reference + both, n - reference


def _register_averages() -> None:
    families: dict[str, type[AveragedMetric]] = {
        "precision": Precision,
        "recall": Recall,
        "f1": F1,
        "specificity": Specificity,
    }
    for base, family in families.items():
        for average in ("binary", "micro", "macro", "weighted", "samples"):

            def make(
                *,
                num_classes: int | None = None,
                threshold: float = 0.5,
                threads: int | None = None,
                _family: type[AveragedMetric] = family,
                _average: Any = average,
            ) -> AveragedMetric:
                return _family(average=_average, num_classes=num_classes, threshold=threshold, threads=threads)

            register(f"{base}_{average}", task="classification")(make)


_register_averages()


@register("hamming_loss", task="classification")
class HammingLoss(LabelMetric):
    """Share of labels that are wrong; with one label per example, 1 - accuracy."""

    higher_is_better = False
    is_mean = True
    example_range = (0.0, 1.0)
    takes_multilabel = True

    def _from_margins(self, margins: Margins, multilabel: bool = False) -> FloatArray:
        if not multilabel:
            return np.asarray(1 - margins.both.sum(-1) / margins.n)
        wrong = margins.predicted + margins.reference - 2 * margins.both
        return np.asarray(wrong.sum(-1) / (margins.n * wrong.shape[-1]))

    def per_example(self, predictions: Any, references: Any) -> FloatArray:
        """Return each example's share of wrong labels, float64 [n]."""
        batch = self.read(predictions, references)
        wrong = np.asarray(_on_cpu(batch.predicted != batch.reference), np.float64)
        return np.asarray(wrong.mean(1)) if batch.multilabel else wrong
