from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastbudget as fb
from fastbudget.stats import wilson_interval


@given(st.data(), st.integers(1, 10**6), st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.9999]))
def test_equal_to_scipy(data: st.DataObject, n: int, confidence: float) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    successes = data.draw(st.integers(0, n))
    expected = scipy_stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    low, high = wilson_interval(successes, n, confidence)
    assert low == pytest.approx(expected.low, rel=1e-9, abs=1e-12)
    assert high == pytest.approx(expected.high, rel=1e-9, abs=1e-12)
    assert 0 <= low <= successes / n <= high <= 1 and low < high


def test_certain_samples_are_not_certain() -> None:
    assert wilson_interval(30, 30) == (pytest.approx(0.8865, abs=5e-5), 1.0)
    assert wilson_interval(0, 30) == (0.0, pytest.approx(0.1135, abs=5e-5))
    assert wilson_interval(1, 1)[1] == 1.0 and wilson_interval(1, 1)[0] > 0.2


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5), (1, -1)])
def test_impossible_counts(successes: int, n: int) -> None:
    with pytest.raises(fb.InvalidInputError):
        wilson_interval(successes, n)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, float("nan")])
def test_impossible_confidence(confidence: float) -> None:
    with pytest.raises(fb.InvalidInputError, match="confidence"):
        wilson_interval(1, 2, confidence)


@pytest.mark.parametrize(("share", "n"), [(0.5, 100), (0.9, 60), (0.97, 200)])
def test_coverage_is_what_it_says(share: float, n: int) -> None:
    # The exact coverage, no simulation: the intervals that hold the truth, weighed by how likely their samples are.
    scipy_stats = pytest.importorskip("scipy.stats")
    likely = scipy_stats.binom.pmf(np.arange(n + 1), n, share)
    covers = [low <= share <= high for low, high in (wilson_interval(k, n) for k in range(n + 1))]
    # Wilson's interval wobbles around its confidence by a few percent at these sizes (Brown, Cai, DasGupta 2001).
    assert 0.93 <= likely[covers].sum() <= 0.98
