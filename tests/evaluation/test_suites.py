import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.evaluation import Task, evaluate_suite
from fastbudget.evaluation.suites import _METRICS_BY_TYPE


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
    # The small group's error dominates that of the unweighted mean; pooling would hide it.
    ses = [(value.high - value.low) / (2 * 1.959964) for value in (large, small)]
    assert suite.macro["accuracy"].se == pytest.approx(np.hypot(*ses) / 2)
    assert suite.macro["accuracy"].se > 0.05
    assert suite.micro["accuracy"].se == pytest.approx(np.hypot(1000 * ses[0], 10 * ses[1]) / 1010)
    # F1 isn't a mean over examples: it has no micro aggregate over tasks.
    assert set(suite.macro) == {"accuracy", "f1_macro"}
    assert set(suite.micro) == {"accuracy"}
    json.dumps(suite.to_json(), allow_nan=False)


def test_micro_counts_examples_of_the_data_not_of_the_samples():
    suite = evaluate_suite(predict, TASKS, tier=fb.Tier(name="ten", num_examples=10))
    large, small = suite["large"]["accuracy"], suite["small"]["accuracy"]
    assert large.num_examples == small.num_examples == 10
    assert suite.micro["accuracy"].value == pytest.approx((1000 * large.value + 10 * small.value) / 1010)


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


def test_texts_and_labels_in_one_suite():
    texts = [(f"the cat {index} sat", f"the cat {index} sat down") for index in range(20)]
    suite = evaluate_suite(
        predict,
        [TASKS[0], Task(name="texts", data=texts, type="summarization", predict=lambda texts: texts)],
    )
    assert suite["texts"]["rougeL"].value == pytest.approx(2 * 4 / 9)
    assert set(suite.macro) == {"accuracy", "rougeL"}


@pytest.mark.parametrize("type", sorted(_METRICS_BY_TYPE))
def test_each_type_has_its_metrics(type):
    assert set(_METRICS_BY_TYPE[type]) <= set(fb.metrics.list(type))


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
