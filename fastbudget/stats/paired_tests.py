"""Tests of a difference between two systems on the same examples, of a size fixed beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ._native import picked_sums
from .bootstrap_intervals import paired_rows
from .distributions import binomial_probabilities
from .results import TestResult
from .validation import FloatArray, real_vector

_MOST_ENUMERATED = 16  # 2^16 sign patterns
_BLOCK = 2_000_000


def mcnemar(candidate: npt.ArrayLike, baseline: npt.ArrayLike) -> TestResult:
    """Return McNemar's exact test (two-sided) of two systems' scores of 0 and 1; the statistic is the difference.

    Under no difference each changed example is as likely a gain as a loss: the gains are Binomial(changes, 1/2).
    Source: Q. McNemar, Psychometrika 12 (1947), 153-157; the exact form is the sign test.

    Args:
        candidate: 0 or 1 (or bool) [n].
        baseline: 0 or 1 [n], of the same examples.

    Raises:
        InvalidInputError: other values, no examples, lengths that differ.
    """
    mine, theirs = _pair(candidate, baseline)
    for name, scores in (("candidate", mine), ("baseline", theirs)):
        if not ((scores == 0) | (scores == 1)).all():
            raise InvalidInputError(f"McNemar's test needs scores of 0 and 1, got others in {name}.")
    gains, losses = int((mine > theirs).sum()), int((mine < theirs).sum())
    return TestResult(
        p_value=_sign_test(gains, losses),
        statistic=(gains - losses) / len(mine),
        method="McNemar, exact",
        exactness="exact",
    )


def paired_permutation(
    candidate: npt.ArrayLike,
    baseline: npt.ArrayLike,
    *,
    resamples: int = 10_000,
    seed: int = 0,
    threads: int | None = None,
) -> TestResult:
    """Return a two-sided permutation test of the mean paired difference, which is the statistic.

    Under no difference each example's two scores could as well be swapped: the signs of the differences are flipped.
    All patterns are counted where they are few, or where all differences have one size (scores of 0 and 1); else
    patterns are drawn and p = (1 + as extreme) / (1 + drawn), which is valid for any number (B. Phipson, G. K. Smyth,
    "Permutation p-values should never be zero", SAGMB 9, 2010).

    Args:
        candidate: float [n].
        baseline: float [n], of the same examples.
        resamples: Patterns drawn.
        seed: Of the draw.
        threads: Native threads; None: all, or OMP_NUM_THREADS.

    Returns:
        Labelled ``"exact"`` where all patterns were counted, else ``"approximate"``.

    Raises:
        InvalidInputError: no examples, NaN, lengths that differ.
    """
    mine, theirs = _pair(candidate, baseline)
    differences = mine - theirs
    changed = differences[differences != 0]
    statistic = float(differences.mean())
    sizes = np.abs(changed)
    if len(changed) == 0 or sizes.min() == sizes.max():
        gains = int((changed > 0).sum())
        p_value, method, exact = _sign_test(gains, len(changed) - gains), "sign flips, all counted", True
    elif len(changed) <= _MOST_ENUMERATED:
        patterns = np.arange(2 ** len(changed))[:, None] >> np.arange(len(changed)) & 1
        flipped = (1 - 2 * patterns) @ changed
        p_value, method, exact = float(_as_extreme(flipped, changed.sum()).mean()), "sign flips, all counted", True
    else:
        picked = picked_sums(changed[:, None], resamples, seed, threads=threads)[:, 0]
        p_value = float(1 + _as_extreme(changed.sum() - 2 * picked, changed.sum()).sum()) / (1 + resamples)
        method, exact = f"{resamples} random sign flips", False
    return TestResult(
        p_value=p_value, statistic=statistic, method=method, exactness="exact" if exact else "approximate"
    )


def approximate_randomization(
    candidate: npt.ArrayLike,
    baseline: npt.ArrayLike,
    statistic: Callable[[FloatArray], Any],
    *,
    resamples: int = 10_000,
    seed: int = 0,
    threads: int | None = None,
) -> TestResult:
    """Return a two-sided test of the difference of a statistic of column sums (corpus BLEU, F1), by swapping systems.

    Source: E. W. Noreen, Computer-Intensive Methods for Testing Hypotheses, 1989; S. Riezler, J. T. Maxwell, "On some
    pitfalls in automatic evaluation and significance testing for MT", ACL workshop 2005.

    Args:
        candidate: float [n, C], each example's contributions.
        baseline: float [n, C], of the same examples.
        statistic: Maps column sums [..., C] to values [...].
        resamples: Random swaps.
        seed: Of the swaps.
        threads: Native threads; None: all, or OMP_NUM_THREADS.

    Raises:
        InvalidInputError: no rows, NaN, shapes that differ.
    """
    rows, difference = paired_rows(candidate, statistic, baseline)
    width = rows.shape[1] // 2
    total = rows.sum(0)
    observed = float(difference(total))
    swaps = picked_sums(rows[:, width:] - rows[:, :width], resamples, seed, threads=threads)
    extreme = 0
    for block in np.array_split(swaps, max(1, swaps.size // _BLOCK)):
        extreme += int(
            _as_extreme(difference(np.concatenate([total[:width] + block, total[width:] - block], 1)), observed).sum()
        )
    return TestResult(
        p_value=(1 + extreme) / (1 + resamples),
        statistic=observed,
        method=f"approximate randomization, {resamples} swaps",
        exactness="approximate",
    )


def _as_extreme(values: FloatArray, observed: float) -> npt.NDArray[np.bool_]:
    """Ties count, and so do sums that differ by rounding only."""
    return np.asarray(np.abs(values) >= abs(observed) * (1 - 1e-12) - 1e-300)


def _sign_test(gains: int, losses: int) -> float:
    changes = gains + losses
    if changes == 0:
        return 1.0
    return min(1.0, 2 * math.fsum(binomial_probabilities(changes, 0.5)[: min(gains, losses) + 1]))


def _pair(candidate: npt.ArrayLike, baseline: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    mine = real_vector(candidate, "candidate")
    return mine, real_vector(baseline, "baseline", len(mine))
