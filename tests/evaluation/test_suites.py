import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.evaluation import Task, evaluate_suite, macro_mean, micro_mean


def test_the_unweighted_means_error_is_dominated_by_the_small_group():
    # The case: the pooled error, which a large group hides in, is no error of the unweighted mean.
    mean = macro_mean([0.8, 0.4], [0.01, 0.15], [1000, 10])
    assert mean.value == pytest.approx(0.6)
    assert mean.standard_error == pytest.approx(0.0752, abs=5e-5)
    assert mean.high - mean.value == pytest.approx(1.96 * 0.0752, rel=1e-3)
    assert mean.weighting == "macro"
    micro = micro_mean([0.8, 0.4], [0.01, 0.15], [1000, 10])
    assert micro.value == pytest.approx((800 + 4) / 1010)
    assert micro.standard_error == pytest.approx(np.hypot(1000 * 0.01, 10 * 0.15) / 1010)


def test_the_errors_are_those_of_repeated_samples():
    rng = np.random.default_rng(0)
    counts, rates = np.array([400, 25, 100]), np.array([0.9, 0.5, 0.7])
    drawn = rng.binomial(counts, rates, (20_000, 3)) / counts
    errors = np.sqrt(rates * (1 - rates) / counts)
    assert macro_mean(rates, errors, counts).standard_error == pytest.approx(drawn.mean(1).std(), rel=0.03)
    pooled = (drawn * counts).sum(1) / counts.sum()
    assert micro_mean(rates, errors, counts).standard_error == pytest.approx(pooled.std(), rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), "at least one"),
        (([0.5], [0.1, 0.2], [1]), "as many"),
        (([0.5], [-0.1], [1]), "negative"),
        (([0.5], [float("nan")], [1]), "negative"),
        (([0.5], [0.1], [0]), "at least one example"),
        (([0.5], [0.1], [10], 1.0), "confidence"),
    ],
)
def test_groups_that_have_no_mean(arguments, message):
    for mean in (macro_mean, micro_mean):
        with pytest.raises(fb.InvalidInputError, match=message):
            mean(*arguments)


def task(name, rate, n, seed=0, **options):
    """A task on which the identity is right with a given rate."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    given = np.where(rng.random(n) < rate, truth, (truth + 1) % 3)
    given = given + 10 * np.arange(n)  # contents differ
    return Task(name=name, data=list(zip(given.tolist(), truth.tolist(), strict=True)), **options)


def predict(inputs):
    return np.asarray(inputs) % 10 % 3


TASKS = [task("large", 0.9, 1000), task("small", 0.5, 10, metrics=["accuracy", "f1_macro"])]


def test_tasks_and_aggregates_in_one_call():
    suite = evaluate_suite(predict, TASKS)
    large, small = suite["large"]["accuracy"], suite["small"]["accuracy"]
    assert suite.macro["accuracy"].value == pytest.approx((large.value + small.value) / 2)
    assert suite.micro["accuracy"].value == pytest.approx((1000 * large.value + 10 * small.value) / 1010)
    assert suite.macro["accuracy"].standard_error > 0.05
    assert suite.micro["accuracy"].standard_error < 0.02
    # F1 isn't a mean over examples: it has no micro aggregate over tasks.
    assert set(suite.macro) == {"accuracy", "f1_macro"}
    assert set(suite.micro) == {"accuracy"}
    json.dumps(suite.to_json(), allow_nan=False)


def test_tasks_run_side_by_side_with_the_same_results():
    with ThreadPoolExecutor(2) as executor:
        side_by_side = evaluate_suite(predict, TASKS, executor=executor)
    one_by_one = evaluate_suite(predict, TASKS)
    assert list(side_by_side.tasks) == ["large", "small"]
    assert side_by_side.macro == one_by_one.macro
    assert side_by_side.micro == one_by_one.micro


def test_a_task_may_have_its_own_predict_tier_and_type():
    rng = np.random.default_rng(1)
    numbers = [(float(x), float(x)) for x in rng.normal(size=50)]
    suite = evaluate_suite(
        predict,
        [TASKS[0], Task(name="numbers", data=numbers, type="regression", predict=lambda x: np.asarray(x) + 1.0)],
        tier=fb.evaluation.Tier(name="few", num_examples=40),
    )
    assert suite["large"].num_examples == 40
    assert suite["numbers"]["mse"].value == pytest.approx(1.0)


def test_a_failing_task_is_named_and_can_be_left_out():
    def fails(inputs):
        raise RuntimeError("out of coffee")

    tasks = [TASKS[0], task("broken", 0.5, 20, predict=fails)]
    with pytest.raises(RuntimeError, match="coffee"):
        evaluate_suite(predict, tasks)
    suite = evaluate_suite(predict, tasks, keep_going=True)
    assert suite.failed == {"broken": "RuntimeError: out of coffee"}
    assert list(suite.tasks) == ["large"]
    assert suite.macro == {}
    with pytest.raises(fb.InvalidInputError, match="Task 'empty'"):
        evaluate_suite(predict, [Task(name="empty", data=[])])


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "at least one"),
        ([TASKS[0], TASKS[0]], "each name once"),
        ([Task(name="x", data=[], type="poetry")], "must name its metrics"),
    ],
)
def test_suites_that_cannot_be(tasks, message):
    with pytest.raises(fb.InvalidInputError, match=message):
        evaluate_suite(predict, tasks)
    with pytest.raises(fb.InvalidInputError, match="no predict"):
        evaluate_suite(None, [TASKS[0]])
