"""What the sequential test is told of the examples beforehand, checked: margins, weights, bounds and guesses."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .validation import FloatArray, IntArray, real_vector


def sums_by(unit: IntArray, values: FloatArray) -> FloatArray:
    """Return the sums of the values of each unit."""
    return np.bincount(unit, weights=np.broadcast_to(values, unit.shape)).astype(np.float64, copy=False)


def checked_margins(low: float, high: float) -> tuple[float, float]:
    """Return the margins as floats if they are finite and in order."""
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise InvalidInputError(f"Margins must be finite with margin_low <= margin_high, got {low!r} and {high!r}.")
    return float(low), float(high)


def draw_weights(flip_probability: npt.ArrayLike | None, count: int, floor: float) -> FloatArray:
    """√probability is the weight of least variance for ±1 changes; the floor bounds what a wrong guess can cost."""
    if flip_probability is None:
        return np.ones(count)
    probability = real_vector(flip_probability, "flip_probability", count)
    if probability.min() < 0 or probability.max() > 1:
        raise InvalidInputError(
            f"flip_probability must be in [0, 1], got {probability.min():g} to {probability.max():g}."
        )
    weights = np.sqrt(probability)
    mean = weights.mean()
    return np.maximum(weights / mean, floor) if mean > 0 else np.ones(count)


def expected_changes(flip_probability: npt.ArrayLike | None, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the guessed mean of each difference: where a change has one direction, its probability that way."""
    if flip_probability is None:
        return np.zeros(len(low))
    one_way = np.where(low == 0, high, np.where(high == 0, low, 0.0))
    return np.asarray(flip_probability, np.float64) * one_way


def score_bounds(
    baseline: FloatArray | None, value_range: tuple[float, float], score_range: tuple[float, float] | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the least and greatest score and what NaN counts as, each float [N] or of no dimension."""
    low, high = _checked_range(value_range, "value_range")
    if baseline is None:
        if score_range is not None:
            raise InvalidInputError("score_range needs a baseline; without one, value_range bounds the values.")
        return np.asarray(low), np.asarray(high), np.asarray(low)
    if score_range is None and baseline.min() >= 0 and baseline.max() <= 1 and low >= -1 and high <= 1:
        score_range = (0.0, 1.0)
    score_low, score_high = baseline + low, baseline + high
    if score_range is not None:
        least, greatest = _checked_range(score_range, "score_range")
        if baseline.min() < least or baseline.max() > greatest:
            raise InvalidInputError(
                f"baseline scores must be in score_range {score_range}, got {baseline.min():g} to {baseline.max():g}."
            )
        score_low, score_high = np.maximum(score_low, least), np.minimum(score_high, greatest)
    return score_low, score_high, score_low


def _checked_range(bounds: tuple[float, float], name: str) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be two numbers, got {bounds!r}.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInputError(f"{name} must be finite and increasing, got {bounds!r}.")
    return low, high


def two_values(where: IntArray, first: FloatArray, second: FloatArray) -> InvalidInputError:
    """Return the error for an example with two results."""
    at = int((first != second).argmax())
    return InvalidInputError(
        f"Example {where[at]} has two different values, {first[at]:g} and {second[at]:g}: results of "
        "two models, or of one that isn't deterministic."
    )


def fingerprint_of(*arrays: npt.NDArray[Any] | None) -> str:
    """Return a hash of what a state belongs to."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
