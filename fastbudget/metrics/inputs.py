"""What users hold, as checked arrays and lists: numpy, torch, lists, pandas, pyarrow, Hugging Face datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError

_NATIVE_TYPES = (np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.int64))


def is_tensor(values: Any) -> bool:
    """Whether this is a torch tensor, without importing torch."""
    return hasattr(values, "detach")


def to_numpy(values: Any, name: str = "The column") -> npt.NDArray[Any]:
    """Return a numpy array without copying where possible; torch tensors are detached and brought to the CPU.

    Raises:
        InvalidInputError: a ragged list, or a column with missing values.
    """
    if type(values) is np.ndarray:
        return values
    if is_tensor(values):
        values = values.detach()
        if str(values.dtype) == "torch.bfloat16":  # numpy has no bfloat16
            values = values.float()
        return np.asarray(values.cpu().numpy())
    if hasattr(values, "to_pylist"):  # pyarrow: its own to_numpy turns integers with nulls into floats
        if values.null_count:
            raise InvalidInputError(f"{name} holds {values.null_count} missing values; drop or fill them first.")
        if "list" in str(values.type):
            values = values.to_pylist()
        elif hasattr(values, "chunks"):
            return np.asarray(values.to_numpy())
        else:
            return np.asarray(values.to_numpy(zero_copy_only=False))
    elif not isinstance(values, np.ndarray | list | tuple) and hasattr(values, "features"):  # a datasets column
        values = values[:]
    if isinstance(values, list | tuple) and values and is_tensor(values[0]):
        return np.stack([to_numpy(value, name) for value in values])
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InvalidInputError(f"{name} must be a rectangular array ({error}).") from None


def same_length(predictions: Any, references: Any) -> None:
    """Raise InvalidInputError unless there are as many predictions as references."""
    if len(predictions) != len(references):
        raise InvalidInputError(
            f"predictions and references must have the same length, got {len(predictions)} and {len(references)}."
        )


def as_labels(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Return class labels as an integer array that native code takes."""
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


def best_class(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return each row's best class; a row with NaN has none and is an error."""
    if np.isnan(scores).any():
        row = int(np.flatnonzero(np.isnan(scores).any(axis=1))[0])
        raise InvalidInputError(f"predictions[{row}] holds NaN scores: no class is its best.")
    return np.asarray(scores.argmax(axis=1), np.int64)


def label_pair(predictions: Any, references: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return predicted and reference labels as 1-D integer arrays.

    Predictions may be labels [n] or scores [n, classes], whose best class counts; NaN scores are an error.
    """
    predicted, reference = to_numpy(predictions, "predictions"), to_numpy(references, "references")
    if reference.ndim != 1:
        raise InvalidInputError(
            f"references must be class labels of shape [n], got shape {list(reference.shape)}. "
            "Several labels per example: multilabel=True."
        )
    if predicted.ndim == 2 and predicted.dtype.kind == "f":
        classes, predicted = predicted.shape[1], best_class(predicted)
        if reference.size and reference.dtype.kind in "iu" and reference.max() >= classes:
            row = int(reference.argmax())
            raise InvalidInputError(
                f"references[{row}] is {reference[row]}, but predictions hold scores of {classes} classes."
            )
    if predicted.ndim != 1:
        raise InvalidInputError(
            f"predictions must be labels [n] or float scores [n, classes], got shape {list(predicted.shape)} "
            f"of {predicted.dtype}."
        )
    same_length(predicted, reference)
    return as_labels(predicted, "predictions"), as_labels(reference, "references")


def multilabel_pair(
    predictions: Any, references: Any, threshold: float
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return 0/1 matrices [n, labels] of predicted and reference labels.

    Predictions are 0, 1 or bool, or float scores of which those at or above ``threshold`` count.
    """
    predicted, reference = to_numpy(predictions, "predictions"), to_numpy(references, "references")
    if predicted.ndim != 2 or predicted.shape != reference.shape:
        raise InvalidInputError(
            f"With multilabel=True predictions and references must both be [n, labels], got {list(predicted.shape)} "
            f"and {list(reference.shape)}."
        )
    if predicted.dtype.kind == "f":
        if np.isnan(predicted).any():
            row = int(np.argwhere(np.isnan(predicted))[0][0])
            raise InvalidInputError(f"predictions[{row}] holds NaN scores.")
        predicted = predicted >= threshold
    return _indicators(predicted, "predictions"), _indicators(reference, "references")


def _indicators(array: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype.kind not in "iu":
        raise InvalidInputError(f"{name} must hold 0 and 1, one column per label; got dtype {array.dtype}.")
    wrong = (array != 0) & (array != 1)
    if wrong.any():
        row, label = np.argwhere(wrong)[0]
        raise InvalidInputError(f"{name}[{row}, {label}] is {array[row, label]}; labels must be 0 or 1.")
    return array.astype(np.uint8)


def number_pair(predictions: Any, references: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return finite numbers of one shape [n] or [n, …]; nothing is broadcast."""
    predicted = numbers(predictions, "predictions")
    reference = numbers(references, "references")
    if predicted.shape != reference.shape or predicted.ndim == 0:
        raise InvalidInputError(
            f"predictions and references must have the same shape [n, …], got {list(predicted.shape)} and "
            f"{list(reference.shape)}; squeeze or unsqueeze one of them."
        )
    return predicted, reference


def numbers(values: Any, name: str) -> npt.NDArray[np.float64]:
    """Return finite numbers as float64."""
    array = to_numpy(values, name)
    if array.dtype.kind not in "iufb":
        raise InvalidInputError(f"{name} must hold numbers, got dtype {array.dtype}.")
    array = np.asarray(array, np.float64)
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise InvalidInputError(f"{name}[{row}] holds NaN or infinity: nothing can be measured against it.")
    return array
