"""Counts of predicted against reference labels: the state behind accuracy, precision, recall, F1 and their kin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ._native import Counts, add_confusion, count_classes, label_range
from .device_counting import count_on_device, on_accelerator
from .example_rows import ExampleRows
from .inputs import label_pair, multilabel_pair, to_numpy

MOST_CLASSES = 4096


@dataclass(frozen=True)
class Margins:
    """Per class or label, int64 [..., C] each: examples that have it in both, in the predictions, in the references.

    ``n`` [...] is the number of examples.
    """

    both: Counts
    predicted: Counts
    reference: Counts
    n: Any


@dataclass(frozen=True)
class LabelBatch:
    """Checked labels: int [n] each, or 0/1 [n, labels] each where an example may have several."""

    predicted: Any
    reference: Any

    @property
    def multilabel(self) -> bool:
        """Whether an example may have several labels."""
        return bool(self.reference.ndim == 2)


def read_labels(predictions: Any, references: Any, threshold: float) -> LabelBatch:
    """Return checked labels; references of two dimensions are 0/1 per label. See `inputs` for what is refused."""
    if on_accelerator(predictions) and on_accelerator(references) and references.ndim == 1:
        if predictions.ndim == 1:
            return LabelBatch(predictions.detach(), references.detach())
        predictions = predictions.detach()
        if predictions.is_floating_point() and not bool(predictions.isnan().any()):
            return LabelBatch(predictions.argmax(1), references.detach())
    predictions, references = to_numpy(predictions, "predictions"), to_numpy(references, "references")
    if predictions.ndim == references.ndim == 2:
        return LabelBatch(*multilabel_pair(predictions, references, threshold))
    return LabelBatch(*label_pair(predictions, references))


def count_labels(batch: LabelBatch, num_classes: int | None, threads: int | None) -> Margins:
    """Return the margins of a batch without building a matrix."""
    if batch.multilabel:
        return multilabel_margins(np.hstack([batch.predicted, batch.reference]))
    if on_accelerator(batch.reference):
        return margins_of(count_on_device(batch.predicted, batch.reference, num_classes))
    both, predicted, reference = count_classes(batch.predicted, batch.reference, num_classes, threads)
    return Margins(both, predicted, reference, len(batch.reference))


def label_rows(batch: LabelBatch) -> npt.NDArray[np.int64] | None:
    """Return single labels int64 [n, 2], predictions and references; None where an example may have several."""
    if batch.multilabel:
        return None
    return np.column_stack([to_numpy(batch.predicted), to_numpy(batch.reference)]).astype(np.int64)


def margins_of(matrix: Counts) -> Margins:
    """Return the margins of a confusion matrix [C, C]."""
    return Margins(np.diagonal(matrix), matrix.sum(0), matrix.sum(1), int(matrix.sum()))


def multilabel_margins(rows: npt.NDArray[np.uint8]) -> Margins:
    """Return the margins of rows [n, 2 labels]: predictions, then references."""
    predicted, reference = np.hsplit(rows, 2)
    sums = [part.sum(0, dtype=np.int64) for part in (predicted & reference, predicted, reference)]
    return Margins(sums[0], sums[1], sums[2], len(rows))


@dataclass(kw_only=True)
class LabelCounts:
    """A confusion matrix int64 [C, C], row = reference, column = prediction; where it can't do, the labels themselves.

    Labels are kept for examples with ids, so that one seen twice counts once, and for examples of several labels.
    """

    matrix: Counts
    kept: ExampleRows = field(default_factory=lambda: ExampleRows(columns=2))
    multilabel: bool | None = None

    @classmethod
    def of(cls, counts: LabelCounts | Counts) -> LabelCounts:
        """Return counts as they are; a confusion matrix [C, C] stands for the examples in it."""
        return counts if isinstance(counts, cls) else cls(matrix=np.asarray(counts, np.int64))

    def add(self, batch: LabelBatch, ids: Any, num_classes: int | None, threads: int | None) -> None:
        """Add a batch; on an error nothing was added."""
        n = len(batch.reference)
        if n == 0:
            return
        if self.multilabel not in (None, batch.multilabel):
            raise InvalidInputError("One batch has single labels [n] and another several per example [n, labels].")
        if batch.multilabel:
            self.kept.columns = 2 * batch.reference.shape[1] if not self.kept.pieces else self.kept.columns
            if self.kept.columns != 2 * batch.reference.shape[1]:
                raise InvalidInputError(
                    f"A batch has {batch.reference.shape[1]} labels after batches of {self.kept.columns // 2}."
                )
            self.kept.append(np.hstack([batch.predicted, batch.reference]), ids)
        elif ids is not None:
            if self.matrix.any():
                raise InvalidInputError("Give ids with every batch or with none.")
            rows = label_rows(batch)
            assert rows is not None
            self._count(np.zeros_like(self.matrix), LabelBatch(rows[:, 0], rows[:, 1]), num_classes, threads)
            self.kept.append(rows, ids)
        else:
            if self.kept.pieces:
                raise InvalidInputError("Give ids with every batch or with none.")
            self.matrix = self._count(self.matrix, batch, num_classes, threads)
        self.multilabel = batch.multilabel

    @staticmethod
    def _count(matrix: Counts, batch: LabelBatch, num_classes: int | None, threads: int | None) -> Counts:
        if on_accelerator(batch.reference):
            added = count_on_device(batch.predicted, batch.reference, num_classes, MOST_CLASSES)
            return padded(matrix, len(added)) + padded(added, len(matrix))
        if num_classes is None:
            largest = max(label_range(batch.predicted)[1], label_range(batch.reference)[1])
            if largest >= MOST_CLASSES:
                raise InvalidInputError(
                    f"A label is {largest}; a confusion matrix is kept for up to {MOST_CLASSES} classes. "
                    "Call the metric on all labels at once instead: that needs no matrix."
                )
            matrix = padded(matrix, largest + 1)
        add_confusion(batch.predicted, batch.reference, matrix, threads)
        return matrix

    def merged(self, other: LabelCounts) -> LabelCounts:
        """Return the counts of both."""
        if None not in (self.multilabel, other.multilabel) and self.multilabel != other.multilabel:
            raise InvalidInputError("One state has single labels [n] and the other several per example [n, labels].")
        if (self.matrix.any() and other.kept.pieces) or (other.matrix.any() and self.kept.pieces):
            raise InvalidInputError("Give ids with every batch or with none.")
        size = max(len(self.matrix), len(other.matrix))
        return LabelCounts(
            matrix=padded(self.matrix, size) + padded(other.matrix, size),
            kept=self.kept.merged(other.kept),
            multilabel=other.multilabel if self.multilabel is None else self.multilabel,
        )

    def confusion(self) -> Counts:
        """Return the confusion matrix [C, C] of single labels."""
        rows = self.kept.rows()
        if not len(rows):
            return self.matrix
        matrix = padded(self.matrix, int(rows.max()) + 1).copy()
        add_confusion(np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1]), matrix)
        return matrix

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Counts:
        return np.array(self.confusion(), dtype, copy=copy)

    def __getitem__(self, cell: Any) -> Any:
        return self.confusion()[cell]

    def rows(self) -> npt.NDArray[np.uint8]:
        """Return rows [n, 2 labels] of examples of several labels: predictions, then references."""
        return np.asarray(self.kept.rows(), np.uint8)


def padded(matrix: Counts, size: int) -> Counts:
    """Return the matrix grown to at least [size, size]."""
    if len(matrix) >= size:
        return matrix
    grown = np.zeros((size, size), np.int64)
    grown[: len(matrix), : len(matrix)] = matrix
    return grown
