from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.stats import (
    approximate_randomization,
    benjamini_hochberg,
    holm,
    mcnemar,
    mean_of_groups,
    minimum_detectable_difference,
    paired_permutation,
    paired_power,
    required_examples,
)

CASES = json.loads((Path(__file__).parent / "cases" / "intervals.json").read_text())


def test_the_mean_of_groups_has_the_right_standard_error() -> None:
    case = CASES["groups"]
    macro = mean_of_groups(case["means"], case["ses"], case["sizes"])
    assert macro.value == pytest.approx(case["macro"]) and macro.se == pytest.approx(case["macro_se"], abs=5e-5)
    micro = mean_of_groups(case["means"], case["ses"], case["sizes"], average="micro")
    assert micro.value == pytest.approx(case["micro"], abs=5e-6)
    assert micro.se == pytest.approx(math.hypot(0.01 * 1000, 0.15 * 10) / 1010)
    with pytest.raises(fb.InvalidInputError, match="needs sizes"):
        mean_of_groups([1, 2], [1, 1], average="micro")
    with pytest.raises(fb.InvalidInputError, match="average must be one of"):
        mean_of_groups([1, 2], [1, 1], average="mean")
    with pytest.raises(fb.InvalidInputError, match="ses must not be negative"):
        mean_of_groups([1, 2], [1, -1])


def test_corrections() -> None:
    case = CASES["holm"]
    assert holm(case["p_values"]) == pytest.approx(case["holm"])
    assert benjamini_hochberg(case["p_values"]) == pytest.approx(case["benjamini_hochberg"])
    generator = np.random.default_rng(0)
    scipy_stats = pytest.importorskip("scipy.stats")
    for _ in range(20):
        p = generator.random(9) ** 3
        assert benjamini_hochberg(p) == pytest.approx(scipy_stats.false_discovery_control(p))
        slow = np.array([min(1, max(sum(q >= r for q in p) * r for r in p if r <= own)) for own in p])
        assert holm(p) == pytest.approx(slow)
    with pytest.raises(fb.InvalidInputError, match="p_values must be in"):
        holm([0.5, 1.5])


def pairs(gains: int, losses: int, same: int) -> tuple[np.ndarray, np.ndarray]:
    candidate = np.repeat([1, 0, 1], [gains, losses, same])
    return candidate, np.repeat([0, 1, 1], [gains, losses, same])


def test_mcnemar_is_the_exact_sign_test() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    case = CASES["mcnemar"]
    rows = [(case["gains"], case["losses"], case["same"]), (0, 0, 5), (1, 0, 0), (7, 7, 3), (0, 40, 1)]
    for gains, losses, same in rows:
        found = mcnemar(*pairs(gains, losses, same))
        expected = scipy_stats.binomtest(gains, gains + losses).pvalue if gains + losses else 1.0
        assert found.p_value == pytest.approx(expected, rel=1e-9)
        assert found.statistic == pytest.approx((gains - losses) / (gains + losses + same))
        assert paired_permutation(*pairs(gains, losses, same)).p_value == pytest.approx(found.p_value)
    with pytest.raises(fb.InvalidInputError, match="scores of 0 and 1"):
        mcnemar([0.5], [1.0])


def test_few_sign_flips_are_all_counted() -> None:
    generator = np.random.default_rng(1)
    candidate, baseline = generator.normal(0.4, 1, (2, 9))
    differences = candidate - baseline
    sums = [abs(np.dot(signs, differences)) for signs in product((-1, 1), repeat=9)]
    expected = np.mean(np.array(sums) >= abs(differences.sum()) - 1e-12)
    found = paired_permutation(candidate, baseline)
    assert found.p_value == pytest.approx(expected) and found.exactness == "exact"


def test_many_sign_flips_are_drawn() -> None:
    generator = np.random.default_rng(2)
    baseline = generator.normal(0, 1, 400)
    candidate = baseline + generator.normal(0.08, 1, 400)
    found = paired_permutation(candidate, baseline, resamples=20_000)
    differences = candidate - baseline
    z = differences.sum() / math.sqrt((differences**2).sum())
    assert found.p_value == pytest.approx(math.erfc(abs(z) / math.sqrt(2)), abs=0.015)
    assert found.exactness == "approximate"
    assert found == paired_permutation(candidate, baseline, resamples=20_000, threads=1)
    assert paired_permutation(baseline + 1 + 1e-3 * candidate, baseline, resamples=99).p_value == 0.01  # never 0


def test_false_alarms_are_as_rare_as_stated() -> None:
    generator = np.random.default_rng(3)
    alarms = sum(
        paired_permutation(*generator.normal(0, 1, (2, 40)), resamples=199, seed=seed).p_value <= 0.1
        for seed in range(500)
    )
    assert 0.05 <= alarms / 500 <= 0.15


def test_approximate_randomization_swaps_whole_examples() -> None:
    generator = np.random.default_rng(4)
    baseline = generator.integers(0, 10, (300, 2)) + np.array([0.0, 10.0])
    candidate = baseline + generator.integers(-1, 3, (300, 1)) * [1, 0]

    def ratio(totals: np.ndarray) -> np.ndarray:
        return totals[..., 0] / totals[..., 1]

    found = approximate_randomization(candidate, baseline, ratio, resamples=2000)
    assert found.statistic == pytest.approx(ratio(candidate.sum(0)) - ratio(baseline.sum(0)))
    assert found.p_value == pytest.approx(1 / 2001)
    # With a statistic that is the mean it is the permutation test.
    one, other = candidate[:60, :1] + generator.normal(0, 8, (60, 1)), baseline[:60, :1]
    swapped = approximate_randomization(one, other, lambda totals: totals[..., 0] / 60, resamples=20_000)
    assert swapped.p_value == pytest.approx(
        paired_permutation(one[:, 0], other[:, 0], resamples=20_000).p_value, abs=0.02
    )


def test_power_agrees_with_simulated_tests() -> None:
    generator = np.random.default_rng(5)
    n, difference, churn = 800, 0.03, 0.1
    outcomes = generator.multinomial(n, [(churn + difference) / 2, (churn - difference) / 2, 1 - churn], 20_000)
    z = (outcomes[:, 0] - outcomes[:, 1]) / np.sqrt(np.maximum(1, outcomes[:, 0] + outcomes[:, 1]))
    power = paired_power(n, difference, churn=churn)
    assert power == pytest.approx((np.abs(z) > 1.96).mean(), abs=0.02)
    assert paired_power(n, -difference, churn=churn) == power


@pytest.mark.parametrize("kind", [{"churn": 0.1}, {"std": 0.4}])
def test_sample_sizes_and_detectable_differences_are_inverse(kind: dict) -> None:
    n = required_examples(0.02, power=0.9, **kind)
    assert paired_power(n, 0.02, **kind) == pytest.approx(0.9, abs=1e-3)
    assert minimum_detectable_difference(n, power=0.9, **kind) == pytest.approx(0.02, rel=1e-3)
    finite = required_examples(0.02, power=0.9, population=3000, **kind)
    assert finite < min(n, 3000)
    assert minimum_detectable_difference(finite, power=0.9, population=3000, **kind) == pytest.approx(0.02, rel=2e-3)
    assert minimum_detectable_difference(3000, population=3000, **kind) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"difference": 0, "churn": 0.1}, "difference"),
        ({"difference": 0.1}, "either churn"),
        ({"difference": 0.1, "churn": 0.05}, "at least |difference|"),
        ({"difference": 0.1, "std": 0}, "std"),
        ({"difference": 0.1, "std": 1, "power": 1}, "power"),
        ({"difference": 0.1, "std": 1, "alpha": 0}, "alpha"),
    ],
)
def test_impossible_designs(arguments: dict, message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message.replace("|", r"\|")):
        required_examples(**arguments)
