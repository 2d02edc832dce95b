from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.stats import SequentialPairedTest, sequential_test
from fastbudget.stats.proportions import clopper_pearson_interval

sys.path.insert(0, str(Path(__file__).parent))
from betting_reference import greatest_wealth


def scores_of(n: int, losses: float, gains: float, accuracy: float = 0.8) -> tuple[np.ndarray, np.ndarray]:
    """Return baseline and candidate scores of 0 and 1; losses and gains are shares of all examples."""
    baseline = np.zeros(n)
    right = round(accuracy * n)
    baseline[:right] = 1
    candidate = baseline.copy()
    candidate[: round(losses * n)] = 0
    candidate[right : right + round(gains * n)] = 1
    return baseline, candidate


def run(test: SequentialPairedTest, scores: np.ndarray, batch: int = 50) -> SequentialPairedTest:
    while test.decision == "undecided":
        indices = test.next_batch(batch)
        test.update(indices, scores[indices])
    return test


def all_of(test: SequentialPairedTest, scores: np.ndarray) -> SequentialPairedTest:
    indices = test.next_batch(test.num_examples)
    test.update(indices, scores[indices])
    return test


# --- the wealth -----------------------------------------------------------------------------------------------------


def population(kind: str, n: int = 120) -> dict:
    generator = np.random.default_rng(4)
    baseline = (generator.random(n) < 0.7).astype(float)
    scores = np.where(generator.random(n) < 0.15, 1 - baseline, baseline)
    arguments: dict = {"baseline": baseline}
    if kind in ("weighted", "clusters"):
        arguments["flip_probability"] = np.clip(0.2 * generator.random(n) + 0.3 * (scores != baseline), 0, 1)
    if kind == "clusters":
        arguments["clusters"] = generator.integers(0, 25, n)
    if kind == "real":
        baseline = generator.random(n)
        arguments = {"baseline": baseline, "flip_probability": generator.random(n)}
        scores = np.clip(baseline + generator.normal(0, 0.2, n), 0, 1)
    if kind == "one-sample":
        arguments, scores = {"value_range": (0.0, 1.0), "margin_low": 0.6, "margin_high": 0.6}, generator.random(n)
    if kind == "zone":
        arguments |= {"margin_low": -0.3, "margin_high": 0.3}
    if kind == "proxy":
        arguments["proxy"] = np.where(generator.random(n) < 0.05, 1 - scores, scores)
    return {"scores": scores, **arguments}


@pytest.mark.parametrize("kind", ["uniform", "weighted", "clusters", "real", "one-sample", "zone", "proxy"])
def test_wealth_and_bounds_equal_the_plain_reference(kind: str) -> None:
    given = population(kind)
    scores = given.pop("scores")
    n = len(scores)
    test = SequentialPairedTest(n, seed=3, **given)
    reference = given.get("proxy", given.get("baseline", np.zeros(n)))
    known = float((reference - given.get("baseline", 0)).sum())
    low, high = (0.0, 1.0) if kind == "one-sample" else (-reference, 1 - reference)
    low, high = np.broadcast_to(low, n), np.broadcast_to(high, n)
    weights, expected = np.ones(n), np.zeros(n)
    fractions, shares = sequential_test.BET_FRACTIONS, sequential_test.BET_SHARES
    if "flip_probability" in given:
        flip = given["flip_probability"]
        weights = np.sqrt(flip) / np.sqrt(flip).mean()
        weights, shares = np.maximum(weights, 0.85), sequential_test.WEIGHTED_BET_SHARES
        if kind != "real":
            expected = flip * (1 - 2 * given["baseline"])
    unit = np.arange(n)
    if kind == "clusters":
        unit = np.unique(given["clusters"], return_inverse=True)[1]
    drawn = test.next_batch(n)
    order = list(dict.fromkeys(unit[drawn]))
    parts = [np.bincount(unit, weights=part)[order] for part in (scores - reference, weights, low, high, expected)]
    values, weights, low, high, expected = parts
    evaluated = len(order) * 2 // 3
    inside = drawn[np.isin(unit[drawn], order[:evaluated])]
    test.update(inside, scores[inside])
    assert test.num_evaluated == len(inside)

    def wealth(null: float, above: bool) -> np.ndarray:
        arguments = (values[:evaluated], weights, low, high, expected, n * null - known, fractions, shares)
        return greatest_wealth(*arguments, above=above)

    margin_low, margin_high = given.get("margin_low", 0.0), given.get("margin_high", 0.0)
    up, down = wealth(margin_high, True), wealth(margin_low, False)
    assert test.p_better == pytest.approx(min(1, 1 / up[-1]), rel=1e-9)
    assert test.p_worse == pytest.approx(min(1, 1 / down[-1]), rel=1e-9)
    # The bounds are where the reference's wealth crosses 2 / alpha.
    lower, upper = test.interval()
    for bound, above in ((lower, True), (upper, False)):
        outward = -1e-5 if above else 1e-5
        assert wealth(bound + outward, above)[-1] >= 40
        assert wealth(bound - outward, above)[-1] < 40


def test_the_draw_is_the_weighted_one() -> None:
    # With weights 1 : 1 : 4 the third of three is drawn first four times in six; then 1 : 1.
    firsts, seconds = np.zeros(3), np.zeros(3)
    flip = np.array([1.0, 1.0, 16.0]) / 16
    for seed in range(3000):
        order = SequentialPairedTest(3, flip_probability=flip, weight_floor=1e-6, seed=seed).next_batch(3)
        firsts[order[0]] += 1
        seconds[order[1]] += 1
    error = 4 * math.sqrt(0.25 / 3000)
    assert firsts / 3000 == pytest.approx([1 / 6, 1 / 6, 4 / 6], abs=error)
    assert seconds[2] / 3000 == pytest.approx(2 * (1 / 6) * (4 / 5), abs=error)


# --- decisions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 30, 500])
@pytest.mark.parametrize("gains", [0.0, 0.05, 0.2])
def test_all_examples_give_the_full_evaluations_answer(n: int, gains: float) -> None:
    baseline, scores = scores_of(n, 0.05, gains, accuracy=0.5)
    test = all_of(SequentialPairedTest(n, baseline, seed=n), scores)
    difference = (scores.sum() - baseline.sum()) / n
    assert test.decision == ("better" if difference > 0 else "worse" if difference < 0 else "equal")
    assert test.interval() == (difference, difference)
    assert test.p_value == (1.0 if difference == 0 else 0.0)
    assert test.estimate == difference
    assert len(test.next_batch(5)) == 0


def test_a_margin_is_exact_at_the_end() -> None:
    baseline, scores = scores_of(1000, 0.02, 0.01)
    assert all_of(SequentialPairedTest(1000, baseline, margin_low=-0.01, margin_high=-0.01), scores).decision == "equal"
    assert all_of(SequentialPairedTest(1000, baseline, margin_low=-0.02, margin_high=0.02), scores).decision == "equal"
    assert all_of(SequentialPairedTest(1000, baseline, margin_low=-0.005, margin_high=0.02), scores).decision == "worse"


def test_equal_is_said_early_when_the_interval_lies_between_the_margins() -> None:
    baseline, scores = scores_of(5000, 0.01, 0.01)
    test = run(SequentialPairedTest(5000, baseline, margin_low=-0.03, margin_high=0.03), scores)
    low, high = test.interval()
    assert test.decision == "equal" and test.num_evaluated < 2500
    assert -0.03 <= low <= 0 <= high <= 0.03


def test_what_is_left_that_cannot_change_the_sign_ends_the_test() -> None:
    # The baseline got all right, so the candidate can only be worse: one loss decides, whatever is left.
    n = 40
    scores = np.ones(n)
    scores[7] = 0
    test = SequentialPairedTest(n, np.ones(n))
    for index in test.next_batch(n):
        test.update([index], [scores[index]])
        assert test.decision == ("worse" if index == 7 else "undecided")
        if index == 7:
            break
    assert test.p_value == 0
    assert test.interval()[1] == pytest.approx(-1 / n)


def test_interval_and_decision_never_contradict_each_other() -> None:
    for seed in range(30):
        baseline, scores = scores_of(2000, 0.03, 0.06)
        test = SequentialPairedTest(2000, baseline, seed=seed)
        before = (-1.0, 1.0)
        while test.num_evaluated < 2000:
            indices = test.next_batch(100)
            test.update(indices, scores[indices])
            low, high = test.interval()
            assert before[0] - 1e-12 <= low <= high <= before[1] + 1e-12  # only ever narrower
            before = (low, high)
            assert (test.decision == "better") == (low >= 0 and high > 0) or test.num_evaluated == 2000
            assert (test.p_value <= 0.05) == (test.decision in ("better", "worse"))


def test_the_mean_of_estimates_is_the_difference() -> None:
    baseline, scores = scores_of(300, 0.05, 0.10)
    flip = np.where(scores != baseline, 0.5, 0.05)
    for arguments in ({}, {"flip_probability": flip}, {"clusters": np.arange(300) // 7}):
        estimates = []
        for seed in range(800):
            test = SequentialPairedTest(300, baseline, seed=seed, **arguments)
            indices = test.next_batch(40)
            test.update(indices, scores[indices])
            estimates.append(test.estimate)
        assert np.mean(estimates) == pytest.approx(0.05, abs=4 * np.std(estimates) / math.sqrt(800))


# --- validity and cost in short; bench/evaluation has the long runs ------------------------------------------------


def spread(n: int) -> dict:
    baseline, scores = scores_of(n, 0.02, 0.02)
    return {"baseline": baseline, "scores": scores}


def wrong_flip_probabilities(n: int) -> dict:
    given = spread(n)
    changed = given["scores"] != given["baseline"]
    return {**given, "flip_probability": np.where(changed, 0.001, np.random.default_rng(0).choice([0.01, 0.9], n))}


def harmed_clusters(n: int) -> dict:
    given = spread(n)
    return {
        **given,
        "clusters": np.concatenate([np.arange(round(0.8 * n)) // 25, np.arange(n, n + n - round(0.8 * n))]),
    }


@pytest.mark.parametrize("population_of", [spread, wrong_flip_probabilities, harmed_clusters])
def test_no_difference_is_rarely_called_one(population_of) -> None:
    n, trials, errors = 1000, 300, 0
    given = population_of(n)
    scores = given.pop("scores")
    for seed in range(trials):
        test = run(SequentialPairedTest(n, seed=seed, alpha=0.2, **given), scores)
        errors += test.decision != "equal"
    # A broken martingale errs far more often; 0.2 is the promise.
    assert clopper_pearson_interval(errors, trials, 0.999).low <= 0.2, errors


def test_intervals_cover_at_every_look() -> None:
    n, trials, missed = 600, 150, 0
    baseline, scores = scores_of(n, 0.05, 0.08)
    for seed in range(trials):
        test = SequentialPairedTest(n, baseline, alpha=0.2, seed=seed)
        for _ in range(11):
            indices = test.next_batch(50)
            test.update(indices, scores[indices])
        low, high = test.interval()  # running intersection: once wrong, always wrong
        missed += not low <= 0.03 <= high
    assert clopper_pearson_interval(missed, trials, 0.999).low <= 0.2, missed


@pytest.mark.parametrize(("difference", "promise"), [(0.01, 2984), (0.02, 1283), (0.03, 657), (0.05, 352)])
def test_a_decision_costs_no_more_than_promised(difference: float, promise: int) -> None:
    # The promise of bench/evaluation/sequential_cost.py with fewer draws; 10% is its tolerance.
    baseline, scores = scores_of(10_000, 0.02, 0.02 + difference)
    tests = [run(SequentialPairedTest(10_000, baseline, seed=seed), scores) for seed in range(120)]
    costs = [test.num_evaluated for test in tests]
    assert np.mean(costs) - 3 * np.std(costs) / math.sqrt(len(costs)) <= 1.1 * promise
    assert np.mean([test.decision == "better" for test in tests]) > 0.95


def test_good_flip_probabilities_save_examples() -> None:
    generator = np.random.default_rng(0)
    n = 5000
    baseline = (generator.random(n) < 0.8).astype(float)
    flip = np.where(generator.random(n) < 0.15, 0.25, 0.002)
    scores = np.where(generator.random(n) < flip * np.where(baseline == 1, 0.35, 3.0), 1 - baseline, baseline)
    assert scores.mean() - baseline.mean() > 0.01

    def cost(**arguments: object) -> float:
        return float(
            np.mean(
                [run(SequentialPairedTest(n, baseline, seed=s, **arguments), scores).num_evaluated for s in range(60)]
            )
        )

    assert cost(flip_probability=flip) * 1.3 < cost()


# --- draws, order of results, resuming ------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_examples() -> None:
    first = SequentialPairedTest(1000, np.zeros(1000), seed=5).next_batch(100)
    assert (first == SequentialPairedTest(1000, seed=5).next_batch(100)).all()
    assert (first != SequentialPairedTest(1000, seed=6).next_batch(100)).any()
    assert sorted(SequentialPairedTest(1000, seed=5).next_batch(1000)) == list(range(1000))


def test_results_may_come_in_any_order() -> None:
    baseline, scores = scores_of(2000, 0.05, 0.07)
    inorder, shuffled = (SequentialPairedTest(2000, baseline, seed=1) for _ in range(2))
    generator = np.random.default_rng(0)
    for _ in range(8):
        indices = inorder.next_batch(100)
        inorder.update(indices, scores[indices])
        shuffled.next_batch(100)
    drawn = inorder._example_order[:800]
    for part in np.array_split(generator.permutation(drawn[1:]), 13):
        shuffled.update(part, scores[part])
    assert shuffled.num_evaluated == 0  # the first one drawn is missing
    shuffled.update(drawn[:1], scores[drawn[:1]])
    assert shuffled.num_evaluated == 800
    assert shuffled.interval() == inorder.interval() and shuffled.p_value == inorder.p_value


def test_whole_clusters_are_drawn_and_counted() -> None:
    clusters = np.array(["a", "b", "b", "c", "c", "c", "d", "d", "d", "d"])
    test = SequentialPairedTest(10, np.zeros(10), clusters=clusters, seed=2)
    batch = test.next_batch(3)
    assert len(batch) >= 3
    names = list(dict.fromkeys(clusters[batch]))
    assert sorted(batch) == sorted(np.flatnonzero(np.isin(clusters, names)))
    last = clusters[batch] == clusters[batch[-1]]
    test.update(batch[:-1], np.zeros(len(batch) - 1))
    assert test.num_evaluated == len(batch) - last.sum()  # a cluster counts when it is complete
    test.update(batch[-1:], [0.0])
    assert test.num_evaluated == len(batch)


@pytest.mark.parametrize("clustered", [False, True])
def test_an_interrupted_test_resumes_to_the_same_end(clustered: bool) -> None:
    baseline, scores = scores_of(1000, 0.05, 0.05)
    arguments = {"clusters": np.arange(1000) // 6} if clustered else {}
    whole = all_of(SequentialPairedTest(1000, baseline, seed=9, **arguments), scores)
    first = SequentialPairedTest(1000, baseline, seed=9, **arguments)
    indices = first.next_batch(900)
    first.update(indices[:850], scores[indices[:850]])
    first.update(indices[870:890], scores[indices[870:890]])  # a worker's results beyond a gap
    resumed = SequentialPairedTest(1000, baseline, seed=9, **arguments)
    resumed.load_state_dict(first.state_dict())
    assert resumed.num_evaluated == first.num_evaluated
    evaluated = 870
    while resumed.num_evaluated < 1000:
        indices = resumed.next_batch(64)
        evaluated += len(indices)
        resumed.update(indices, scores[indices])
    assert evaluated == 1000  # nothing is evaluated twice
    assert (resumed.decision, resumed.interval()) == (whole.decision, whole.interval())
    with pytest.raises(fb.InvalidInputError, match="other arguments or other data"):
        SequentialPairedTest(1000, 1 - baseline, seed=9, **arguments).load_state_dict(first.state_dict())
    with pytest.raises(fb.InvalidInputError, match="other arguments or other data"):
        SequentialPairedTest(1000, baseline, seed=8, **arguments).load_state_dict(first.state_dict())
    with pytest.raises(fb.InvalidInputError, match="has results already"):
        resumed.load_state_dict(first.state_dict())


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_examples": 0}, "num_examples"),
        ({"alpha": 0.0}, "alpha must be between 0 and 1"),
        ({"alpha": 1.0}, "alpha must be between 0 and 1"),
        ({"alpha": math.nan}, "alpha must be between 0 and 1"),
        ({"baseline": [0.0] * 9}, "baseline must have one entry per example: 10, got 9"),
        ({"baseline": [0.0] * 9 + [math.nan]}, "baseline must be finite, got 1 NaN"),
        ({"flip_probability": [0.5] * 9 + [1.5]}, "flip_probability must be in"),
        ({"margin_low": 0.1, "margin_high": 0.0}, "margin_low <= margin_high"),
        ({"margin_high": math.inf}, "Margins must be finite"),
        ({"value_range": (1, 0)}, "value_range must be finite and increasing"),
        ({"value_range": 3}, "value_range must be two numbers"),
        ({"score_range": (0, 1)}, "score_range needs a baseline"),
        ({"baseline": [2.0] * 10, "score_range": (0, 1)}, "baseline scores must be in score_range"),
        ({"proxy": [0.0] * 10}, "proxy needs a baseline"),
        ({"clusters": [1, 2]}, "clusters must have one entry per example"),
        ({"weight_floor": 0}, "weight_floor"),
        ({"two_sided": False, "margin_high": 0.1}, "two_sided=False needs equal margins"),
        ({"nan_policy": "ignore"}, "nan_policy must be one of"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        SequentialPairedTest(**{"num_examples": 10, **arguments})


def test_bad_results_are_refused_and_change_nothing() -> None:
    test = SequentialPairedTest(10, np.ones(10))
    drawn = test.next_batch(5)
    undrawn = next(i for i in range(10) if i not in drawn)
    for indices, values, message in (
        ([undrawn], [1.0], "was not drawn"),
        ([10], [1.0], r"must be in \[0, 10\)"),
        ([drawn[0]], [math.nan], "is NaN"),
        ([drawn[0]], [-1.0], "takes scores, not differences"),
        ([drawn[0], drawn[0]], [0.0, 1.0], "two different values"),
        ([0.5], [1.0], "whole numbers"),
        (drawn, [1.0], "as many values as indices"),
    ):
        with pytest.raises(fb.InvalidInputError, match=message):
            test.update(indices, values)
    assert test.num_evaluated == 0
    test.update(drawn[:2], [1.0, 1.0])
    test.update(drawn[:3], [1.0, 1.0, 0.0])  # the same again, and one more
    assert test.num_evaluated == 3
    with pytest.raises(fb.InvalidInputError, match="two different values"):
        test.update(drawn[:1], [0.0])
    with pytest.raises(fb.InvalidInputError, match="next_batch"):
        test.next_batch(0)


def test_nan_counts_as_wrong_when_asked_for() -> None:
    test = SequentialPairedTest(4, np.ones(4), nan_policy="wrong")
    indices = test.next_batch(4)
    test.update(indices, [1.0, math.nan, 1.0, 1.0])
    assert test.num_nan == 1
    assert test.interval() == (-0.25, -0.25)


def test_scores_of_another_scale_need_their_range() -> None:
    baseline = np.array([30.0, 40.0, 50.0, 20.0])
    test = SequentialPairedTest(4, baseline, value_range=(-100, 100), score_range=(0, 100))
    test.update(test.next_batch(4), [90.0, 90.0, 90.0, 90.0])
    assert test.decision == "better" and test.interval() == (55.0, 55.0)
