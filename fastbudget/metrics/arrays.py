"""Predictions and references as users hold them, turned into numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError

_NATIVE_TYPES = (np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.int64))


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return a numpy array without copying where possible; torch tensors are detached and brought to the CPU."""
    if hasattr(values, "detach"):
        values = values.detach()
        if str(values.dtype) == "torch.bfloat16":  # numpy has no bfloat16
            values = values.float()
        values = values.cpu().numpy()
    return np.asarray(values)


def _as_labels(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    if array.dtype in _NATIVE_TYPES and array.dtype.isnative and array.flags.aligned:
        return array
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise InvalidInputError(f"{name} holds labels beyond int64.")
    if array.dtype.kind in "iu" or array.size == 0:  # numpy takes an empty list for floats
        return array.astype(np.int64)
    raise InvalidInputError(
        f"{name} must hold integer class labels, got dtype {array.dtype}. "
        "Map names to indices first; scores go in as [n, classes]."
    )


def _best_class(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if np.isnan(scores).any():
        row = int(np.flatnonzero(np.isnan(scores).any(axis=1))[0])
        raise InvalidInputError(f"predictions[{row}] holds NaN scores: no class is its best.")
    return np.asarray(scores.argmax(axis=1), np.int64)


def label_pair(predictions: Any, references: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return predicted and reference labels as 1-D integer arrays.

    Predictions may be labels [n] or scores [n, classes], whose best class counts; NaN scores are an error.
    """
    predicted, reference = to_numpy(predictions), to_numpy(references)
    if reference.ndim != 1:
        raise InvalidInputError(f"references must be class labels of shape [n], got shape {list(reference.shape)}.")
    if predicted.ndim == 2 and predicted.dtype.kind == "f":
        predicted = _best_class(predicted)
    if predicted.ndim != 1:
        raise InvalidInputError(
            f"predictions must be labels [n] or float scores [n, classes], got shape {list(predicted.shape)} "
            f"of {predicted.dtype}."
        )
    if len(predicted) != len(reference):
        raise InvalidInputError(
            f"predictions and references must have the same length, got {len(predicted)} and {len(reference)}."
        )
    return _as_labels(predicted, "predictions"), _as_labels(reference, "references")
