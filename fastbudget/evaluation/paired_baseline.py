"""A baseline's results, matched with the examples of a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..core.executor import Executor
from ..metrics import Metric
from ..store import EvaluationStore, hash_data
from ..store.content_hash import Hashes
from ..store.example_values import unique_examples
from .example_data import Batch, take_rows
from .recorded import read_record
from .records import EvaluationRecord, ExampleScores
from .scoring import KnownResults, Scoring

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PairedBaseline:
    """Scores float64 [N] and margins float32 [N] | None of a baseline; NaN where it wasn't evaluated."""

    scores: FloatArray
    margins: npt.NDArray[np.float32] | None

    @property
    def is_known(self) -> npt.NDArray[np.bool_]:
        """Which examples it was evaluated on, bool [N]."""
        return ~np.isnan(self.scores)

    def only_known(self) -> PairedBaseline:
        """Return the examples that it was evaluated on."""
        known = self.is_known
        return PairedBaseline(scores=self.scores[known], margins=None if self.margins is None else self.margins[known])


def pair_baseline(
    record: EvaluationRecord, name: str, metric: Metric[Any], hashes: Hashes, store: EvaluationStore | None
) -> PairedBaseline:
    """Match a record with a data set.

    Args:
        record: Of the baseline.
        name: Of the metric in the record.
        metric: How the candidate will be scored.
        hashes: uint8 [N, 16], the data set's contents.
        store: To read results per example from, where the record hasn't got them.

    Raises:
        InvalidInputError: another data set, another metric or other options, or no results per example.
    """
    examples = record.examples
    if examples is None and store is not None and record.store_id is not None:
        examples = read_record(store, record.store_id).examples
    if examples is None:
        raise InvalidInputError(
            "The baseline record has no results per example to be paired with: its examples have no content hash "
            "(custom objects?), or it was read from JSON. Evaluate the baseline again, with a store to keep them."
        )
    _check_metric(examples, name, metric)
    scores, margins = examples.scores[name], examples.margins
    known = unique_examples(examples.hashes, np.arange(len(examples)), what="baseline", tolerance=np.inf)
    # A repeated example has one score; where rounding made two, the first counts.
    found = known.find(hashes)
    _check_data(record, examples, hashes, int((found >= 0).sum()))
    place = known.values[found] if len(known) else found
    return PairedBaseline(
        scores=np.where(found >= 0, scores[place], np.nan),
        margins=None if margins is None else np.where(found >= 0, margins[place], np.float32(0)).astype(np.float32),
    )


def _check_metric(examples: ExampleScores, name: str, metric: Metric[Any]) -> None:
    if name not in examples.scores:
        raise InvalidInputError(
            f"The baseline has no values per example of {name!r}; it has them of {sorted(examples.scores)}. A "
            "comparison needs a metric of single examples that both were evaluated with."
        )
    if examples.signatures[name] != metric.signature:
        raise InvalidInputError(
            f"The baseline was scored with {examples.signatures[name]!r}, the candidate would be with "
            f"{metric.signature!r}: pass the same metric object as metric=, or evaluate the baseline again."
        )


def _check_data(record: EvaluationRecord, examples: ExampleScores, hashes: Hashes, shared: int) -> None:
    whole = record.data_hash
    same = hash_data(hashes) == whole if whole is not None else shared > 0
    if not same:
        size = record.population_size if record.population_size is not None else len(examples)
        raise InvalidInputError(
            f"The baseline was evaluated on another data set: {shared} of the {len(hashes)} examples given here are "
            f"among those it was scored on, and its data set had {size}. Content decides: inputs, references or their "
            "preprocessing changed. Evaluate the baseline on this data first."
        )


class BaselineRuns:
    """Scores of examples that the baseline wasn't evaluated on, from a ``predict`` of its own."""

    def __init__(
        self,
        predict: Callable[[Any], Any],
        name: str,
        metric: Metric[Any],
        known: KnownResults | None,
        nan: str,
        executor: Executor | None,
    ) -> None:
        self._predict = predict
        self._name = name
        self._scoring = Scoring({name: metric}, known, nan, 0.95)
        self._executor = executor

    @property
    def num_predicted(self) -> int:
        """Examples that the baseline was run on."""
        return self._scoring.num_examples - self._scoring.num_cached

    def complete(self, batch: Batch, scores: FloatArray) -> FloatArray:
        """Return a batch's baseline scores without gaps."""
        missing = np.flatnonzero(np.isnan(scores))
        if len(missing) == 0:
            return scores
        rows, count = missing.tolist(), len(batch)
        part = Batch(
            inputs=take_rows(batch.inputs, rows, count),
            references=take_rows(batch.references, rows, count),
            indices=batch.indices[missing],
            hashes=None if batch.hashes is None else batch.hashes[missing],
        )
        filled = scores.copy()
        for _, found in self._scoring.run(self._predict, [part], self._executor):
            filled[missing] = found[self._name]
        return filled
