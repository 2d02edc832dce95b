"""Checks of what callers hand to the statistics, each answered with what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def check_confidence(confidence: float) -> float:
    """Return the confidence if it lies strictly between 0 and 1, else raise InvalidInputError."""
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence must be between 0 and 1 (0.95, say), got {confidence!r}.")
    return confidence


def check_alpha(alpha: float) -> float:
    """Return the error rate if it lies strictly between 0 and 1, else raise InvalidInputError."""
    if not 0 < alpha < 1:
        raise InvalidInputError(f"alpha must be between 0 and 1 (0.05, say), got {alpha!r}.")
    return alpha


def real_vector(values: Any, name: str, length: int | None = None) -> FloatArray:
    """Return the values as a new or the same float64 [n], refusing other shapes, no values, NaN and infinity."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be numbers, got {type(values).__name__}.") from None
    if array.ndim != 1:
        raise InvalidInputError(f"{name} must be one-dimensional, got the shape {array.shape}.")
    if length is not None and len(array) != length:
        raise InvalidInputError(f"{name} must have one entry per example: {length}, got {len(array)}.")
    if len(array) == 0:
        raise InvalidInputError(f"{name} must not be empty.")
    bad = ~np.isfinite(array)
    if bad.any():
        raise InvalidInputError(
            f"{name} must be finite, got {bad.sum()} NaN or infinite of {len(array)}, the first at {bad.argmax()}. "
            "Leave them out, or count them as wrong before."
        )
    return array


def group_vector(groups: Any, name: str, length: int) -> IntArray:
    """Return labels of groups, any hashable kind numpy can sort, as int64 [n] in 0, 1, …"""
    array = np.asarray(groups)
    if array.shape != (length,):
        raise InvalidInputError(f"{name} must have one entry per example: {length}, got the shape {array.shape}.")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InvalidInputError(f"{name} must not be NaN.")
    inverse = np.unique(array, return_inverse=True)[1]
    return inverse.astype(np.int64, copy=False)
