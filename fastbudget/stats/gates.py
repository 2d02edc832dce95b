"""The sequential test under the names of the questions it answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .sequential_test import SequentialPairedTest


def non_inferiority(
    num_examples: int, baseline: npt.ArrayLike | None = None, *, delta: float, alpha: float = 0.05, **options: Any
) -> SequentialPairedTest:
    """Return a gate that asks whether the candidate is not worse than the baseline by ``delta`` or more.

    ``"better"`` is passed: D > -delta. ``"worse"`` (or ``"equal"``, at n = N with D = -delta) is failed. Each of both
    answers is wrong with a probability of at most ``alpha``.

    Args:
        num_examples: N.
        baseline: float [N], the baseline's scores; None: the values are differences.
        delta: The loss that is just not tolerated, above 0, in the unit of the scores.
        alpha: Largest probability of passing an inferior candidate, and of failing another.
        options: Of `SequentialPairedTest`.
    """
    if not delta > 0:
        raise InvalidInputError(
            f"delta must be above 0 (0.01: one percentage point), got {delta!r}. See `superiority`."
        )
    return _one_sided(num_examples, baseline, -delta, alpha, options)


def superiority(
    num_examples: int,
    baseline: npt.ArrayLike | None = None,
    *,
    margin: float = 0.0,
    alpha: float = 0.05,
    **options: Any,
) -> SequentialPairedTest:
    """Return a gate that asks whether the candidate is better than the baseline by more than ``margin``.

    ``"better"`` is passed: D > margin; ``"worse"`` or ``"equal"`` is failed. Each is wrong with a probability of at
    most ``alpha``.

    Args:
        num_examples: N.
        baseline: float [N], the baseline's scores; None: the values are differences.
        margin: The gain asked for, at least 0.
        alpha: Largest probability of a wrong answer.
        options: Of `SequentialPairedTest`.
    """
    if not margin >= 0:
        raise InvalidInputError(f"margin must be at least 0, got {margin!r}. See `non_inferiority`.")
    return _one_sided(num_examples, baseline, margin, alpha, options)


def threshold_test(
    num_examples: int,
    threshold: float,
    *,
    value_range: tuple[float, float] = (0.0, 1.0),
    alpha: float = 0.05,
    **options: Any,
) -> SequentialPairedTest:
    """Return a one-sample test that asks whether the mean score over all examples is above ``threshold``.

    ``"better"``: above; ``"worse"``: below; ``"equal"``, at n = N: exactly there. Each is wrong with a probability of
    at most ``alpha``. ``update`` takes the scores.

    Args:
        num_examples: N.
        threshold: Inside value_range.
        value_range: Bounds of a score.
        alpha: Largest probability of a wrong answer.
        options: Of `SequentialPairedTest`.
    """
    if not value_range[0] <= threshold <= value_range[1]:
        raise InvalidInputError(f"threshold must be in value_range {value_range}, got {threshold!r}.")
    return _one_sided(num_examples, None, threshold, alpha, {**options, "value_range": value_range})


def proxy_audit(
    baseline: npt.ArrayLike, proxy: npt.ArrayLike, *, alpha: float = 0.05, **options: Any
) -> SequentialPairedTest:
    """Return a test of the candidate that starts from a cheap copy's scores of all examples.

    The copy (quantized, say) has scored everything; the candidate itself scores only the examples drawn, to correct
    the copy's mean. Where both mostly agree, few are enough: D is known but for the mean of their disagreement. The
    same idea as the comparison audit of an election's paper ballots (P. B. Stark, "Super-simple simultaneous
    single-ballot risk-limiting audits", EVT/WOTE 2010).

    Args:
        baseline: float [N], the baseline's scores.
        proxy: float [N], the cheap copy's scores.
        alpha: Largest probability of a wrong decision.
        options: Of `SequentialPairedTest`; ``flip_probability`` is here that copy and candidate disagree.
    """
    return SequentialPairedTest(np.shape(baseline)[0], baseline, proxy=proxy, alpha=alpha, **options)


def _one_sided(
    num_examples: int, baseline: npt.ArrayLike | None, margin: float, alpha: float, options: dict[str, Any]
) -> SequentialPairedTest:
    return SequentialPairedTest(
        num_examples, baseline, margin_low=margin, margin_high=margin, alpha=alpha, two_sided=False, **options
    )
