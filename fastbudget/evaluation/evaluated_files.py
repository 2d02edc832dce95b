"""Predictions that were made elsewhere, scored as if they were made here."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, one_of
from ..metrics import Metric, get
from ..metrics.row_metrics import MeanMetric
from ..store import EvaluationStore
from .evaluator import evaluate
from .prediction_files import Predictions
from .records import EvaluationRecord
from .tiers import Tier


def evaluate_predictions(
    predictions: Predictions,
    metrics: Sequence[str] | None = None,
    *,
    tier: str | Tier = "full",
    store: EvaluationStore | str | PathLike[str] | None = None,
    thresholds: dict[str, float] | None = None,
    confidence: float = 0.95,
    nan: str = "error",
    name: str = "",
) -> EvaluationRecord:
    """Score predictions from a file.

    An example's content is its id, its reference, and what was asked where the file tells: two files are of the same
    data when these agree.

    Args:
        predictions: From `read_predictions`, and `with_references` where the references lie in another file.
        metrics: Names of metrics, or of columns of scores in the file. None: the columns of scores, or accuracy.
        tier: See `evaluate`.
        store: See `evaluate`.
        thresholds: See `evaluate`.
        confidence: See `evaluate`.
        nan: See `evaluate`.
        name: See `evaluate`.

    Raises:
        InvalidInputError: no references, ids that don't match, or a metric that can't take what the file holds.
    """
    chosen = _chosen_metrics(predictions, metrics)
    columns = [metric for metric in chosen.values() if isinstance(metric, ScoreColumn)]
    if columns and len(columns) < len(chosen):
        raise InvalidInputError(
            f"Columns of scores ({one_of(predictions.scores)}) and metrics can't be mixed in one call, got "
            f"{one_of(chosen)}."
        )
    data = _FileExamples(predictions, as_labels=any(metric.task == "classification" for metric in chosen.values()))
    return evaluate(
        data.predict_columns if columns else data.predict,
        data,
        chosen,
        tier,
        store=store,
        model_key=data.model_key(),
        thresholds=thresholds,
        confidence=confidence,
        nan=nan,
        name=name,
    )


def with_references(predictions: Predictions, references: Predictions) -> Predictions:
    """Return predictions with the references of another file, matched by id.

    Raises:
        InvalidInputError: the other file has no references, or not for each id.
    """
    if references.references is None:
        raise InvalidInputError(f"{', '.join(references.sources)} holds no references.")
    if predictions.ids_are_rows != references.ids_are_rows or (
        predictions.ids_are_rows and len(predictions) != len(references)
    ):
        raise InvalidInputError(
            "Predictions and references are matched by id, or row by row where neither file has ids and both are of "
            f"one length; got {len(predictions)} and {len(references)} examples. Add a column of ids to both."
        )
    place = {identity: index for index, identity in enumerate(references.ids)}
    missing = [identity for identity in predictions.ids if identity not in place]
    if missing:
        raise InvalidInputError(f"{len(missing)} predictions have no reference: id {missing[0]!r}, for one.")
    order = [place[identity] for identity in predictions.ids]
    given = references.references
    return replace(
        predictions, references=given[order] if isinstance(given, np.ndarray) else [given[index] for index in order]
    )


class ScoreColumn(MeanMetric):
    """The mean of scores that a file holds already, which stand in the predictions' place."""

    def __init__(self, name: str, scores: npt.NDArray[np.float64]) -> None:
        self.name = name
        given = scores[~np.isnan(scores)]
        inside = bool(((given >= 0) & (given <= 1)).all())
        self.example_range = (0.0, 1.0) if inside else None  # type: ignore[misc]

    @property
    def signature(self) -> str:
        """The column's name."""
        return f"column:{self.name}"

    @property
    def input_key(self) -> Hashable:
        """Its own."""
        return ("column", self.name)

    def read(self, predictions: Any, references: Any) -> npt.NDArray[np.float64]:
        """Return the scores, float64 [n]."""
        return np.asarray([row[self.name] for row in predictions], np.float64)

    def _rows(self, batch: Any) -> npt.NDArray[np.float64]:
        return np.asarray(batch)[:, None]


def _chosen_metrics(predictions: Predictions, names: Sequence[str] | None) -> dict[str, Metric[Any]]:
    if names is None:
        names = tuple(predictions.scores) or ("accuracy",)
    return {
        name: ScoreColumn(name, predictions.scores[name]) if name in predictions.scores else get(name) for name in names
    }


class _FileExamples:
    """A file as a data set, and as the model that made it."""

    def __init__(self, file: Predictions, *, as_labels: bool) -> None:
        self.ids = file.ids
        self._file = file
        self._row = {identity: index for index, identity in enumerate(file.ids)}
        self._predictions, self._references = file.predictions, file.references
        if as_labels and self._references is not None:
            self._predictions, self._references = _class_numbers(file)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        content = None if self._file.content is None else self._file.content[index]
        # The content that decides is the file's own; class numbers depend on which classes occur.
        original = None if self._file.references is None else self._file.references[index]
        return (self.ids[index], content, original), None if self._references is None else self._references[index]

    def predict(self, batch: tuple[list[str], Any, Any]) -> Any:
        """Return the file's predictions of a batch."""
        if self._predictions is None or self._references is None:
            what = "predictions" if self._predictions is None else "references"
            raise InvalidInputError(
                f"{', '.join(self._file.sources)} holds no {what}. Name the column, or give a file of references."
            )
        rows = [self._row[identity] for identity in batch[0]]
        given = self._predictions
        return given[rows] if isinstance(given, np.ndarray) else [given[row] for row in rows]

    def predict_columns(self, batch: tuple[list[str], Any, Any]) -> list[dict[str, float]]:
        """Return the file's scores of a batch."""
        rows = [self._row[identity] for identity in batch[0]]
        return [{name: float(values[row]) for name, values in self._file.scores.items()} for row in rows]

    def model_key(self) -> dict[str, Any]:
        """Return what the file says: another file that says the same is the same model."""
        said = self._predictions
        return {
            "ids": self.ids,
            "predictions": said if isinstance(said, np.ndarray) or said is None else list(said),
            "scores": dict(self._file.scores),
        }


def _class_numbers(file: Predictions) -> tuple[Any, Any]:
    """Return predictions and references with class names as numbers, in alphabetical order."""
    texts = [values for values in (file.predictions, file.references) if values is not None and _is_text(values)]
    if not texts:
        return file.predictions, file.references
    if len(texts) == 1:
        raise InvalidInputError(
            "predictions and references must both be class names, or both class numbers; one is text, the other not."
        )
    names = sorted({str(value) for values in texts for value in values})
    number = {name: index for index, name in enumerate(names)}
    return tuple(np.array([number[str(value)] for value in values]) for values in texts)  # type: ignore[return-value]


def _is_text(values: Any) -> bool:
    return len(values) > 0 and isinstance(values[0], str)
