"""Corrections for testing more than one hypothesis. Exact, given valid p-values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .validation import FloatArray, real_vector


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Return p-values adjusted by Holm's step-down method: reject those <= alpha.

    The probability of any false rejection is at most alpha, however the tests depend on each other; anytime-valid
    p-values stay so. Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal
    of Statistics 6 (1979), 65-70.

    Args:
        p_values: float [m] in [0, 1].
    """
    sorted_p, order = _sorted(p_values)
    factors = np.arange(len(sorted_p), 0, -1)
    return _back(np.minimum(1, np.maximum.accumulate(sorted_p * factors)), order)


def benjamini_hochberg(p_values: npt.ArrayLike) -> FloatArray:
    """Return p-values adjusted by Benjamini and Hochberg's step-up method: reject those <= q.

    The expected share of false rejections is at most q for independent or positively dependent tests. Source:
    Y. Benjamini, Y. Hochberg, "Controlling the false discovery rate", JRSS-B 57 (1995), 289-300.

    Args:
        p_values: float [m] in [0, 1].
    """
    sorted_p, order = _sorted(p_values)
    scaled = sorted_p * len(sorted_p) / np.arange(1, len(sorted_p) + 1)
    return _back(np.minimum(1, np.minimum.accumulate(scaled[::-1])[::-1]), order)


def _sorted(p_values: npt.ArrayLike) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    values = real_vector(p_values, "p_values")
    if values.min() < 0 or values.max() > 1:
        raise InvalidInputError(f"p_values must be in [0, 1], got {values.min():g} to {values.max():g}.")
    order = np.argsort(values, kind="stable")
    return values[order], order


def _back(adjusted: FloatArray, order: npt.NDArray[np.intp]) -> FloatArray:
    result = np.empty_like(adjusted)
    result[order] = adjusted
    return result
