"""The mean of several groups' means, with the standard error that belongs to its kind."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, one_of
from .results import ConfidenceInterval
from .validation import check_confidence, real_vector


def mean_of_groups(
    means: npt.ArrayLike,
    ses: npt.ArrayLike,
    sizes: npt.ArrayLike | None = None,
    *,
    average: Literal["macro", "micro"] = "macro",
    confidence: float = 0.95,
) -> ConfidenceInterval:
    """Return the mean over independent groups (tasks of a suite, say) with its standard error (asymptotic interval).

    ``macro``: each group counts the same, se = √(Σ se²) / groups: 0.0752 for ses (0.01, 0.15), whatever the sizes.
    ``micro``: each example counts the same, weights n / Σ n.

    Args:
        means: float [groups].
        ses: float [groups], the means' standard errors.
        sizes: int [groups], examples per group; needed for the micro average.
        average: ``"macro"`` or ``"micro"``.
        confidence: Between 0 and 1.

    Raises:
        InvalidInputError: an argument is out of its range.
    """
    check_confidence(confidence)
    values = real_vector(means, "means")
    errors = real_vector(ses, "ses", len(values))
    if errors.min() < 0:
        raise InvalidInputError(f"ses must not be negative, got {errors.min():g}.")
    if average == "macro":
        weights = np.full(len(values), 1 / len(values))
    elif average == "micro":
        if sizes is None:
            raise InvalidInputError("The micro average needs sizes, the number of examples of each group.")
        counts = real_vector(sizes, "sizes", len(values))
        if counts.min() <= 0:
            raise InvalidInputError(f"sizes must be at least 1, got {counts.min():g}.")
        weights = counts / counts.sum()
    else:
        raise InvalidInputError(f"average must be one of {one_of(('macro', 'micro'))}, got {average!r}.")
    value = float(weights @ values)
    se = math.sqrt(float((weights**2) @ (errors**2)))
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * se
    return ConfidenceInterval(
        low=value - half,
        high=value + half,
        value=value,
        se=se,
        confidence=confidence,
        method=f"{average} average of {len(values)} groups, normal",
        exactness="asymptotic",
    )
