from __future__ import annotations

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.stats import non_inferiority, proxy_audit, superiority, threshold_test
from fastbudget.stats.proportions import clopper_pearson_interval


def run(test: fb.stats.SequentialPairedTest, scores: np.ndarray) -> fb.stats.SequentialPairedTest:
    while test.decision == "undecided":
        indices = test.next_batch(50)
        test.update(indices, scores[indices])
    return test


def changed(n: int, losses: int, gains: int) -> tuple[np.ndarray, np.ndarray]:
    baseline = np.repeat([1.0, 0.0], [round(0.8 * n), n - round(0.8 * n)])
    scores = baseline.copy()
    scores[:losses] = 0
    scores[n - gains :] = 1
    return baseline, scores


def test_the_gate_passes_what_is_not_worse_than_delta_and_fails_what_is() -> None:
    baseline, same = changed(5000, 20, 20)
    passed = run(non_inferiority(5000, baseline, delta=0.02), same)
    assert passed.decision == "better" and passed.num_evaluated < 2500
    assert passed.p_value <= 0.05 and passed.interval()[0] >= -0.02 and passed.confidence == 0.9
    _, worse = changed(5000, 250, 0)
    assert run(non_inferiority(5000, baseline, delta=0.02), worse).decision == "worse"
    _, exactly = changed(5000, 100, 0)
    test = non_inferiority(5000, baseline, delta=0.02, seed=3)
    test.update(test.next_batch(5000), exactly[test._example_order])
    assert test.decision == "equal"  # not passed


def test_a_candidate_at_delta_rarely_passes() -> None:
    n, trials = 1000, 300
    baseline, scores = changed(n, 50, 30)  # D = -2%
    passed = sum(
        run(non_inferiority(n, baseline, delta=0.02, alpha=0.2, seed=seed), scores).decision == "better"
        for seed in range(trials)
    )
    assert clopper_pearson_interval(passed, trials, 0.999).low <= 0.2, passed
    assert passed > 10  # one-sided: the whole of alpha is used


def test_superiority_asks_for_more_than_the_margin() -> None:
    baseline, scores = changed(5000, 0, 150)
    assert run(superiority(5000, baseline), scores).decision == "better"
    assert run(superiority(5000, baseline, margin=0.05), scores).decision == "worse"


def test_a_threshold_needs_no_baseline() -> None:
    _, scores = changed(5000, 0, 0)
    passed = run(threshold_test(5000, 0.7), scores)
    assert passed.decision == "better" and passed.num_evaluated < 1000 and passed.interval()[0] > 0.7
    assert run(threshold_test(5000, 0.9), scores).decision == "worse"


def test_an_audit_of_a_good_proxy_takes_few_examples() -> None:
    n = 10_000
    baseline, scores = changed(n, 100, 300)  # D = 2%
    generator = np.random.default_rng(0)
    proxy = np.where(generator.random(n) < 0.004, 1 - scores, scores)
    audits = [run(proxy_audit(baseline, proxy, seed=seed), scores) for seed in range(20)]
    plain = [run(fb.stats.SequentialPairedTest(n, baseline, seed=seed), scores) for seed in range(20)]
    assert all(audit.decision == "better" for audit in audits)
    mean = np.mean([audit.num_evaluated for audit in audits])
    assert mean < 450 < np.mean([test.num_evaluated for test in plain])
    low, high = audits[0].interval()
    assert 0 <= low <= 0.02 <= high
    test = proxy_audit(baseline, proxy)
    indices = test.next_batch(n)
    test.update(indices, scores[indices])
    assert test.interval() == (0.02, 0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: non_inferiority(5, delta=0), "delta must be above 0"),
        (lambda: superiority(5, margin=-0.1), "margin must be at least 0"),
        (lambda: threshold_test(5, 1.5), "threshold must be in value_range"),
        (lambda: non_inferiority(5, delta=0.1, alpha=0.7), "alpha"),
        (lambda: proxy_audit([0.0, 1.0], [0.0]), "proxy must have one entry"),
    ],
)
def test_bad_arguments(call, message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        call()
