"""Aggregates over groups (tasks) of measured means, with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from ..core.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class GroupMean:
    """A weighted mean of independent groups' values. The interval is normal, so asymptotic.

    Attributes:
        value: Σ w·x, weights summing to 1.
        standard_error: √Σ w²·se².
        low: End of the interval.
        high: End of the interval.
        confidence: Of the interval.
        weighting: ``"macro"`` (groups count alike) or ``"micro"`` (examples count alike).
        num_groups: How many.
        num_examples: In all groups together.
    """

    value: float
    standard_error: float
    low: float
    high: float
    confidence: float
    weighting: str
    num_groups: int
    num_examples: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def macro_mean(
    values: Sequence[float], standard_errors: Sequence[float], counts: Sequence[int], confidence: float = 0.95
) -> GroupMean:
    """Return the mean in which every group counts alike, whatever its size.

    A small group's large error enters with the weight 1/k: groups of n = (1000, 10) with se = (0.01, 0.15) have a
    mean with se = 0.0752.

    Args:
        values: [k].
        standard_errors: [k], of the values.
        counts: [k], examples.
        confidence: Of the interval.

    Raises:
        InvalidInputError: no group, lengths that differ, a negative error or an empty group.
    """
    weights = [1 / len(values)] * len(values) if len(values) else []
    return _weighted(values, standard_errors, counts, weights, "macro", confidence)


def micro_mean(
    values: Sequence[float], standard_errors: Sequence[float], counts: Sequence[int], confidence: float = 0.95
) -> GroupMean:
    """Return the mean in which every example counts alike. Arguments as `macro_mean`; values are means of examples."""
    total = sum(counts)
    weights = [count / total for count in counts] if total > 0 else []
    return _weighted(values, standard_errors, counts, weights, "micro", confidence)


def _weighted(
    values: Sequence[float],
    standard_errors: Sequence[float],
    counts: Sequence[int],
    weights: Sequence[float],
    weighting: str,
    confidence: float,
) -> GroupMean:
    if len(values) == 0 or not len(values) == len(standard_errors) == len(counts):
        raise InvalidInputError(
            f"An aggregate needs as many values as standard errors and counts and at least one, got {len(values)}, "
            f"{len(standard_errors)} and {len(counts)}."
        )
    if any(count < 1 for count in counts) or any(not error >= 0 for error in standard_errors):
        raise InvalidInputError("An aggregate needs groups of at least one example and errors that aren't negative.")
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence must be between 0 and 1 (0.95, say), got {confidence!r}.")
    value = math.fsum(weight * x for weight, x in zip(weights, values, strict=True))
    error = math.sqrt(math.fsum((weight * se) ** 2 for weight, se in zip(weights, standard_errors, strict=True)))
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * error
    return GroupMean(
        value=value,
        standard_error=error,
        low=value - half,
        high=value + half,
        confidence=confidence,
        weighting=weighting,
        num_groups=len(values),
        num_examples=int(sum(counts)),
    )
