"""Predictions in, metrics out: every example is scored once, from the model or from the store."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..core.executor import Executor, ordered_results
from ..metrics import Metric, MetricSet, MetricValue
from ..metrics.classification import LabelMetric
from ..metrics.label_counts import label_rows
from ..metrics.paired_sums import Contributions, contributions_of
from ..store import EvaluationStore, ExampleValues
from ..store.columns import as_values
from .example_data import Batch, take_rows
from .mean_intervals import RunningMean, mean_with_interval, of_finite_population
from .prediction_calls import PredictionCall, merged, nan_rows, top_two_gap
from .records import ExampleScores

PREDICTION, MARGIN = "prediction", "margin"
_COUNTED_WRONG = "nan counted as wrong"
# Larger predictions (logits per token) aren't kept: their metrics' values per example are.
_LARGEST_KEPT_BYTES = 4096

FloatArray = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class KnownResults:
    """What the store knows of a model before an evaluation, and where to add to it."""

    store: EvaluationStore
    model_hash: str
    preprocessing: str
    predictions: ExampleValues
    margins: ExampleValues
    counted_wrong: ExampleValues  # examples that had no number, under nan="wrong"
    scores: Mapping[str, ExampleValues]  # by signature

    @classmethod
    def read(
        cls, store: EvaluationStore, model_hash: str, preprocessing: str, metrics: Mapping[str, Metric[Any]]
    ) -> KnownResults:
        """Read all columns that the metrics need."""

        def column(name: str) -> ExampleValues:
            return store.values(model_hash, name, preprocessing=preprocessing)

        signatures = signatures_of(metrics)

        return cls(
            store=store,
            model_hash=model_hash,
            preprocessing=preprocessing,
            predictions=column(PREDICTION),
            margins=column(MARGIN),
            counted_wrong=column(_COUNTED_WRONG),
            scores={signature: column(signature) for signature in signatures.values()},
        )


class Scoring:
    """The state of one evaluation.

    Args:
        metrics: By the name they have in the record.
        known: What the store knows; None without a store.
        nan: ``"error"`` or ``"wrong"``: what a prediction that isn't a number means.
    """

    def __init__(self, metrics: Mapping[str, Metric[Any]], known: KnownResults | None, nan: str, confidence: float):
        self._metrics = dict(metrics)
        self.signatures = signatures_of(metrics)
        self._known = known
        self._nan = nan
        self._confidence = confidence
        # What isn't a mean of examples' values is a function of all examples, fed together in one pass.
        whole = {name: metric for name, metric in metrics.items() if not metric.is_mean}
        self._whole = MetricSet(whole) if whole else None
        self._states = self._whole.init() if self._whole is not None else {}
        self._label_metric = next((metric for metric in whole.values() if isinstance(metric, LabelMetric)), None)
        self._labels: list[npt.NDArray[np.int64]] = []  # predicted and reference [n, 2], for metrics of the whole set
        self._scores: dict[str, list[FloatArray]] = {name: [] for name in metrics}
        self._margins: list[npt.NDArray[np.float32]] | None = []
        self._hashes: list[npt.NDArray[np.uint8]] | None = []
        self._indices: list[Rows] = []
        self._means = {name: RunningMean(confidence) for name, metric in metrics.items() if metric.is_mean}
        self.num_examples = 0
        self.num_cached = 0
        self.num_nan = 0
        self._counted_wrong = np.zeros(0, bool)  # of the batch at hand

    def run(
        self, predict: Callable[[Any], Any], batches: Iterable[Batch], executor: Executor | None
    ) -> Generator[tuple[Batch, dict[str, FloatArray]], None, None]:
        """Score batches; yields each with the scores per example of the metrics that have them."""
        largest: int | None = None  # batch that fits into memory

        def work() -> Iterator[tuple[tuple[Batch, Rows], tuple[Any, int, int | None]]]:
            for batch in batches:
                fresh, count = self.unknown_rows(batch), len(batch)
                inputs = batch.inputs if len(fresh) == count else take_rows(batch.inputs, fresh.tolist(), count)
                yield (batch, fresh), (inputs if len(fresh) else None, len(fresh), largest)

        for (batch, fresh), predicted in ordered_results(executor, PredictionCall(predict), work()):
            if predicted.largest_batch is not None:
                largest = min(largest or predicted.largest_batch, predicted.largest_batch)
            yield batch, self.add(batch, fresh, predicted.predictions)

    def unknown_rows(self, batch: Batch) -> Rows:
        """Return which of a batch's examples the model must be asked about."""
        if self._known is None or batch.hashes is None:
            return np.arange(len(batch))
        known = self._known.predictions.find(batch.hashes) >= 0
        if self._whole is None:
            scored = [values.find(batch.hashes) >= 0 for values in self._known.scores.values()]
            known |= np.logical_and.reduce(scored)
        return np.flatnonzero(~known)

    def add(self, batch: Batch, fresh: Rows, predictions: Any) -> dict[str, FloatArray]:
        """Count a batch; returns the scores per example of the metrics that have them.

        Args:
            batch: The examples.
            fresh: Which of them were predicted now, from `unknown_rows`.
            predictions: Of those, in their order; None if there are none.
        """
        count, stored = len(batch), np.setdiff1d(np.arange(len(batch)), fresh)
        parts: list[tuple[Rows, Any]] = [(fresh, predictions)] if len(fresh) else []
        if self._known is not None and len(stored):
            assert batch.hashes is not None
            found = self._known.predictions.find(batch.hashes[stored])
            from_store = stored[found >= 0]
            if len(from_store):
                values = self._known.predictions.values[found[found >= 0]]
                parts.append((from_store, list(values) if values.dtype == object else values))
        rows = np.sort(np.concatenate([where for where, _ in parts])) if parts else np.zeros(0, np.int64)
        self._counted_wrong = np.zeros(count, bool)
        scores: dict[str, FloatArray] = {}
        if len(rows):
            # Places among the rows that have predictions; usually all.
            placed = [(np.searchsorted(rows, where), what) for where, what in parts]
            given = self._without_nan(merged(len(rows), placed), batch, rows)
            references = batch.references if len(rows) == count else take_rows(batch.references, rows.tolist(), count)
            scores = self._score(given, references, batch, rows)
            margins = top_two_gap(given)
        else:
            margins = None
        self._fill_from_store(batch, scores, rows)
        margins = self._all_margins(batch, margins, rows)
        self._commit(batch, fresh, predictions, scores, margins)
        self._keep(batch, scores, margins)
        self.num_cached += len(stored)
        return scores

    def _score(self, predictions: Any, references: Any, batch: Batch, rows: Rows) -> dict[str, FloatArray]:
        if self._whole is not None:
            self._states = self._whole.update(self._states, predictions, references)
        if self._label_metric is not None:
            labels = label_rows(self._label_metric.read(predictions, references))
            if labels is None:
                self._label_metric = None
            else:
                self._labels.append(labels)
        scores = {}
        for name, metric in self._metrics.items():
            values = _per_example(metric, predictions, references)
            if values is not None:
                filled = np.full(len(batch), np.nan)
                filled[rows] = self._numbers(name, values, batch.indices, rows) if metric.is_mean else values
                scores[name] = filled
        return scores

    def _numbers(self, name: str, values: FloatArray, indices: Rows, rows: Rows) -> FloatArray:
        """Return scores without NaN, which would make the whole mean one."""
        missing = np.isnan(values)
        if not missing.any():
            return values
        where = f"{name} of example {indices[rows[missing][0]]} (and {missing.sum() - 1} more of its batch) is NaN"
        if self._nan == "error":
            raise InvalidInputError(
                f"{where}. Find out why there is no number, or pass nan='wrong' to count such examples as wrong and "
                "have them reported."
            )
        metric = self._metrics[name]
        if metric.example_range is None:
            raise InvalidInputError(f"{where}, and {name} has no bounds: there is no worst value to count it as.")
        self.num_nan += int(missing.sum())
        self._counted_wrong[rows[missing]] = True
        return np.where(missing, metric.example_range[0 if metric.higher_is_better else 1], values)

    def _fill_from_store(self, batch: Batch, scores: dict[str, FloatArray], predicted: Rows) -> None:
        """Take the scores of the examples without a prediction from the store."""
        missing = np.setdiff1d(np.arange(len(batch)), predicted)
        if self._known is None or len(missing) == 0:
            return
        assert batch.hashes is not None
        without_number = missing[self._known.counted_wrong.find(batch.hashes[missing]) >= 0]
        if len(without_number) and self._nan == "error":
            raise InvalidInputError(
                f"predictions of example {batch.indices[without_number[0]]} (and {len(without_number) - 1} more of its "
                "batch) held NaN when they were evaluated with nan='wrong', and counted as wrong. Find out why the "
                "model gives no number, or pass nan='wrong' again."
            )
        self.num_nan += len(without_number)
        for name in self._metrics:
            values = self._known.scores[self.signatures[name]]
            filled = scores.setdefault(name, np.full(len(batch), np.nan))
            filled[missing] = values.values[values.find(batch.hashes[missing])]

    def _all_margins(
        self, batch: Batch, margins: npt.NDArray[np.float32] | None, predicted: Rows
    ) -> npt.NDArray[np.float32] | None:
        filled = np.full(len(batch), np.nan, np.float32)
        if margins is not None:
            filled[predicted] = margins
        if self._known is not None and batch.hashes is not None and len(predicted) < len(batch):
            found = self._known.margins.find(batch.hashes)
            lacking = np.isnan(filled) & (found >= 0)
            filled[lacking] = self._known.margins.values[found[lacking]]
        return None if np.isnan(filled).any() else filled

    def _without_nan(self, predictions: Any, batch: Batch, rows: Rows) -> Any:
        wrong = nan_rows(predictions)
        if len(wrong) == 0:
            return predictions
        where = int(batch.indices[rows[wrong[0]]])
        if self._nan == "error":
            raise InvalidInputError(
                f"predictions of example {where} (and {len(wrong) - 1} more of its batch) hold NaN. Find out why the "
                "model gives no number, or pass nan='wrong' to count them as wrong and have them reported."
            )
        references = as_values(take_rows(batch.references, rows[wrong].tolist(), len(batch)))
        values = np.array(as_values(predictions))
        if values.ndim != 2 or values.shape[1] < 2 or references.dtype.kind not in "iub":
            raise InvalidInputError(
                f"nan='wrong' is defined for class scores [n, classes], got predictions {list(values.shape)} for "
                f"example {where}: an error of an unknown number has no value. Drop the example, or use nan='error'."
            )
        values[wrong] = 0.0
        values[wrong, (references.astype(np.int64) + 1) % values.shape[1]] = 1.0
        self.num_nan += len(wrong)
        self._counted_wrong[rows[wrong]] = True
        return values

    def _commit(
        self,
        batch: Batch,
        fresh: Rows,
        predictions: Any,
        scores: Mapping[str, FloatArray],
        margins: npt.NDArray[np.float32] | None,
    ) -> None:
        """Write what is new of a batch to the store, all or nothing."""
        if self._known is None:
            return
        if batch.hashes is None:
            raise InvalidInputError(
                "A store needs examples whose content has a hash: arrays, tensors, text, bytes, images, numbers, and "
                "mappings and sequences of these."
            )
        known = self._known
        columns: dict[str, Any] = {self.signatures[name]: values[fresh] for name, values in scores.items()}
        if margins is not None:
            columns[MARGIN] = margins[fresh]
        if len(fresh) and (kept := _kept_predictions(predictions)) is not None:
            columns[PREDICTION] = kept
        where = {"preprocessing": known.preprocessing}
        without_number = fresh[self._counted_wrong[fresh]]
        if len(without_number) and PREDICTION not in columns:  # nothing else would tell that they were no numbers
            marks = {_COUNTED_WRONG: np.ones(len(without_number))}
            known.store.add(known.model_hash, batch.hashes[without_number], marks, **where)
        known.store.add(known.model_hash, batch.hashes[fresh], columns, **where)
        for name, values in scores.items():  # of a metric that is new for stored predictions
            signature = self.signatures[name]
            lacking = known.scores[signature].find(batch.hashes) < 0
            lacking[fresh] = False
            known.store.add(known.model_hash, batch.hashes[lacking], {signature: values[lacking]}, **where)

    def _keep(self, batch: Batch, scores: Mapping[str, FloatArray], margins: npt.NDArray[np.float32] | None) -> None:
        for name, values in scores.items():
            self._scores[name].append(values)
            if name in self._means:
                self._means[name].add(values)
        self._margins = None if self._margins is None or margins is None else [*self._margins, margins]
        self._hashes = None if self._hashes is None or batch.hashes is None else [*self._hashes, batch.hashes]
        self._indices.append(batch.indices)
        self.num_examples += len(batch)

    def running(self, population_size: int | None) -> tuple[str, float, float, float] | None:
        """Return the first mean metric's name, low, mean and high so far."""
        for name, mean in self._means.items():
            return name, *mean.interval(population_size)
        return None

    @property
    def hashes(self) -> npt.NDArray[np.uint8] | None:
        """Content hashes of what was scored, uint8 [n, 16]."""
        return np.concatenate(self._hashes) if self._hashes else None

    def examples(self) -> ExampleScores | None:
        """Return the results per example, or None where contents have no hash."""
        if self.hashes is None:
            return None
        return ExampleScores(
            hashes=self.hashes,
            scores={name: np.concatenate(parts) for name, parts in self._scores.items() if parts},
            signatures=self.signatures,
            margins=np.concatenate(self._margins) if self._margins else None,
            contributions=self._contributions(),
        )

    def _contributions(self) -> dict[str, Contributions]:
        if self._whole is None:
            return {}
        labels = np.concatenate(self._labels) if self._labels else None
        found = {
            name: contributions_of(metric, self._whole.state(self._states, name), labels)
            for name, metric in self._whole.metrics.items()
        }
        return {name: parts for name, parts in found.items() if parts is not None}

    def values(self, groups: npt.NDArray[np.int64] | None, population_size: int | None) -> dict[str, MetricValue]:
        """Return each metric's value with its interval.

        Args:
            groups: int [N] by place in the data set.
            population_size: N where the interval is for the value on the data set; None: for what it is a sample of.
        """
        own = None if groups is None else groups_of(groups, np.concatenate(self._indices))
        found = {}
        for name, metric in self._metrics.items():
            if metric.is_mean:
                scores = np.concatenate(self._scores[name])
                found[name] = mean_with_interval(scores, self._confidence, own, population_size)
        if self._whole is not None:
            # Counts can't be resampled by groups, rows of tokens can.
            by_group = own if all(m.task == "language_modeling" for m in self._whole.metrics.values()) else None
            for name, value in self._whole.interval(self._states, self._confidence, by_group).items():
                found[name] = value if population_size is None else of_finite_population(value, population_size)
        return {name: found[name] for name in self._metrics}


def signatures_of(metrics: Mapping[str, Metric[Any]]) -> dict[str, str]:
    """Return the signatures that results are kept under, by name.

    BLEU's and chrF's grow by what they have read (the number of references), which belongs to the examples' content:
    the key is that of a metric that has read nothing, before an evaluation and after it.
    """
    for metric in metrics.values():
        if not metric.is_mean:
            metric.init()
    return {name: metric.signature for name, metric in metrics.items()}


def groups_of(groups: npt.ArrayLike, indices: Rows) -> npt.NDArray[np.int64]:
    """Return the groups of some examples, int [n], of those by place in the data set.

    Raises:
        InvalidInputError: an example has none.
    """
    given = np.asarray(groups)
    if given.ndim != 1 or len(given) <= indices.max():
        raise InvalidInputError(
            f"groups must have one entry per example, got {list(given.shape)} for at least {int(indices.max()) + 1}."
        )
    return given[indices]


def _per_example(metric: Metric[Any], predictions: Any, references: Any) -> FloatArray | None:
    """Return the values per example of a metric that has them."""
    has_them = type(metric).per_example is not Metric.per_example
    return metric.per_example(predictions, references) if has_them else None


def _kept_predictions(predictions: Any) -> Any:
    """Return predictions as the store keeps them, or None: too large, or no data."""
    if hasattr(predictions, "detach") and predictions.nbytes > _LARGEST_KEPT_BYTES * len(predictions):
        return None  # not brought to the host first
    values = as_values(predictions)
    if values.dtype == object:
        plain = all(isinstance(item, str | int | float | bool | list | dict | type(None)) for item in values)
        return values if plain else None
    return values if values.nbytes <= _LARGEST_KEPT_BYTES * max(1, len(values)) else None
