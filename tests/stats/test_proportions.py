from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastbudget as fb
from fastbudget.stats import clopper_pearson_interval, wilson_interval

CASES = json.loads((Path(__file__).parent / "cases" / "intervals.json").read_text())


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


@given(st.data(), st.integers(1, 10**6), st.sampled_from([0.5, 0.9, 0.95, 0.9999]))
def test_clopper_pearson_is_scipys(data: st.DataObject, n: int, confidence: float) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    successes = data.draw(st.integers(0, n))
    expected = scipy_stats.binomtest(successes, n).proportion_ci(confidence, method="exact")
    interval = clopper_pearson_interval(successes, n, confidence)
    assert interval.low == pytest.approx(expected.low, rel=1e-8, abs=1e-12)
    assert interval.high == pytest.approx(expected.high, rel=1e-8, abs=1e-12)
    assert interval.exactness == "exact"


@pytest.mark.parametrize("row", CASES["clopper_pearson"]["rows"])
def test_published_clopper_pearson_intervals(row: dict) -> None:
    interval = clopper_pearson_interval(row["successes"], row["n"])
    assert tuple(interval) == pytest.approx((row["low"], row["high"]), abs=1e-6)


def test_the_standard_error_of_certain_samples_is_above_zero() -> None:
    assert wilson_interval(0, 30).se > 0.01
    assert clopper_pearson_interval(30, 30).se == wilson_interval(30, 30).se > 0.01
    assert wilson_interval(50, 100).se == pytest.approx(0.05)


def test_wilsons_coverage_at_98_percent_of_50_is_about_92_percent() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    likely = scipy_stats.binom.pmf(np.arange(51), 50, 0.98)
    covers = [low <= 0.98 <= high for low, high in (wilson_interval(k, 50) for k in range(51))]
    assert likely[covers].sum() == pytest.approx(0.92, abs=0.005)
    exact = [low <= 0.98 <= high for low, high in (clopper_pearson_interval(k, 50) for k in range(51))]
    assert likely[exact].sum() >= 0.95


@pytest.mark.parametrize(("population", "n"), [(40, 12), (200, 150), (60, 59)])
def test_the_finite_clopper_pearson_covers_every_population(population: int, n: int) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    intervals = [tuple(clopper_pearson_interval(k, n, population=population)) for k in range(n + 1)]
    for successes in range(population + 1):
        share = successes / population
        likely = scipy_stats.hypergeom.pmf(np.arange(n + 1), population, successes, n)
        covers = [low <= share + 1e-12 and share - 1e-12 <= high for low, high in intervals]
        assert likely[covers].sum() >= 0.95 - 1e-9


def test_a_finite_set_narrows_intervals_to_the_truth() -> None:
    for make in (wilson_interval, clopper_pearson_interval):
        widths = [np.diff(tuple(make(45, 50, population=n)))[0] for n in (50, 60, 500, 10**6)]
        endless = np.diff(tuple(make(45, 50)))[0]
        assert widths[0] == 0 < widths[1] < widths[2] < widths[3] <= endless * 1.001
        assert make(45, 50, population=50) == (0.9, 0.9)
        with pytest.raises(fb.InvalidInputError, match="population must be at least"):
            make(45, 50, population=49)


def test_an_interval_is_a_pair_with_labels() -> None:
    interval = wilson_interval(3, 4)
    low, high = interval
    assert interval == (low, high) and interval[0] == low and len(interval) == 2
    assert interval == wilson_interval(3, 4) != wilson_interval(2, 4)
    assert interval.value == 0.75 and interval.exactness == "asymptotic"
    assert math.isclose(interval.to_json()["low"], low)
