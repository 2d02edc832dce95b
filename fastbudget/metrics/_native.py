"""The one door of this room to the compiled module: integer label arrays in, counts out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, not_compiled

try:
    from .. import _C
except ImportError as error:
    raise not_compiled(error) from error

Counts = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]


def _refuse(error: IndexError, num_classes: int) -> InvalidInputError:
    return InvalidInputError(f"Class labels must be in [0, {num_classes}): {error}. Check num_classes and the data.")


def count_classes(
    predictions: Labels, references: Labels, num_classes: int | None = None, threads: int | None = None
) -> tuple[Counts, Counts, Counts]:
    """Return, per class, pairs that agree on it, its predictions and its references; int64 [C] each.

    ``num_classes=None`` finds C, the largest label + 1. Labels are 1-D uint8, int32 or int64.
    """
    try:
        return _C.count_classes(predictions, references, num_classes or 0, threads or 0)
    except IndexError as error:
        # Without a number of classes only a negative label is out of range.
        raise _refuse(error, num_classes or 2**24) from None
    except ValueError as error:  # too large for tables of its size
        raise InvalidInputError(f"Labels can't be counted: {error}.") from None


def add_confusion(predictions: Labels, references: Labels, confusion: Counts, threads: int | None = None) -> None:
    """Add pairs to ``confusion`` [C, C] in place: row = reference, column = prediction."""
    try:
        _C.add_confusion(predictions, references, confusion, threads or 0)
    except IndexError as error:
        raise _refuse(error, len(confusion)) from None


def label_range(labels: Labels) -> tuple[int, int]:
    """Return the smallest and largest of at least one label."""
    return _C.label_range(labels, 0)
