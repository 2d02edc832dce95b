"""The sequential comparison: the full evaluation's decision, at a part of its cost, paired by content."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastbudget as fb
from fastbudget.evaluation import FlipRates, read_record

N = 4000


@pytest.fixture(scope="module")
def world(questions: Any, answers: Any) -> Any:
    """Data, and a maker of models by the share of examples that they get right; unsure ones flip first."""
    data = questions(N)
    generator = np.random.default_rng(1)
    difficulty = generator.random(N)

    def model(skill: float, churn: float = 0.0, seed: int = 0) -> Any:
        noise = np.random.default_rng(seed).normal(0, churn, N)
        return answers(data, difficulty + noise > skill, gap=20 * abs(difficulty + noise - skill))

    return data, model


@pytest.fixture(scope="module")
def baseline(world: Any) -> fb.EvaluationRecord:
    data, model = world
    return fb.evaluate(model(0.8), data)


@pytest.mark.parametrize(
    ("skill", "margin", "decision", "passed"),
    [
        (0.86, 0.0, "better", True),
        (0.74, 0.0, "worse", False),
        (0.74, 0.02, "worse", False),
        (0.79, 0.05, "not_worse", True),
        (0.9, 0.02, "better", True),
        (0.8, 0.02, "not_worse", True),
    ],
)
def test_decisions_are_those_of_the_full_evaluation(
    world: Any, baseline: fb.EvaluationRecord, skill: float, margin: float, decision: str, passed: bool
) -> None:
    data, model = world
    candidate = model(skill, churn=0.01)
    verdict = fb.compare(baseline, candidate, data, margin=margin)
    truth = fb.evaluate(candidate, data)["accuracy"].value - baseline["accuracy"].value
    # A margin may settle "better" as "not worse" first: both are right.
    assert verdict.decision in ({decision, "not_worse"} if margin else {decision}) and verdict.passed is passed
    assert verdict.difference.low <= truth <= verdict.difference.high
    assert verdict.n < N / 3 and verdict.N == N and verdict.saved_examples == N - verdict.n
    assert verdict.p_value <= 0.05 and len(set(candidate.asked)) == N
    low, high = verdict.interval
    assert (low >= -margin) if passed else (high <= -margin)
    assert json.loads(json.dumps(verdict.to_json()))["passed"] is passed


def test_equal_models_are_told_equal_at_the_end(world: Any, baseline: fb.EvaluationRecord) -> None:
    data, model = world
    verdict = fb.compare(baseline, model(0.8), data, batch_size=500)
    assert verdict.decision == "equal" and verdict.n == N and verdict.difference.mid == 0 and verdict.p_value is None
    assert verdict.passed and verdict.reason == "every example was evaluated"


def test_wrong_decisions_are_rare(questions: Any, answers: Any) -> None:
    data = questions(300)
    record = fb.evaluate(answers(data, range(100), gap=1.0), data)
    # One in three wrong in both, in other places: D = 0 exactly, much churn.
    candidate = answers(data, range(50, 150))
    wrong = sum(fb.compare(record, candidate, data, seed=seed, batch_size=10).decision != "equal" for seed in range(60))
    assert wrong <= 7  # alpha 0.05 of 60 is 3; more than 7 has a probability of 1%


def test_uncertain_examples_are_drawn_first_where_margins_are_known(world: Any, baseline: fb.EvaluationRecord) -> None:
    data, model = world
    candidate = model(0.807, churn=0.03)
    counts = {}
    rates = FlipRates(fb.evaluate(model(0.793, churn=0.03, seed=5), data), baseline)
    for name, options in {
        "uniform": {"weighted": False},
        "margins": {},
        "rates": {"flip_rates": rates},
    }.items():
        verdicts = [fb.compare(baseline, candidate, data, seed=seed, **options) for seed in range(5)]
        assert {verdict.decision for verdict in verdicts} == {"better"}
        counts[name] = np.mean([verdict.n for verdict in verdicts])
    assert max(counts["margins"], counts["rates"]) < 0.85 * counts["uniform"], counts


def test_the_same_content_is_not_run_again(questions: Any, tmp_path: Path) -> None:
    data = questions(50)
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3).eval()
    calls = []

    def predict(inputs: Any) -> Any:
        calls.append(len(inputs))
        return net(torch.as_tensor(inputs)).detach()

    record = fb.evaluate(predict, data, model_key=net)
    before = len(calls)
    copy = torch.nn.Linear(4, 3)
    copy.load_state_dict(net.state_dict())
    for key in (net, copy):
        verdict = fb.compare(record, predict, data, model_key=key)
        assert verdict.decision == "equal" and verdict.num_predicted == 0 and verdict.saved_examples == 50
    assert len(calls) == before
    with torch.no_grad():
        copy.bias += 1e-4
    assert fb.compare(record, predict, data, model_key=copy).num_predicted > 0
    assert fb.compare(record, predict, data, model_key=net, preprocessing="other").num_predicted > 0


def test_a_store_spares_the_candidate_too(world: Any, tmp_path: Path) -> None:
    data, model = world
    path = tmp_path / "evals.db"
    record = fb.evaluate(model(0.8), data, store=path, model_key="base")
    candidate = model(0.84)
    first = fb.compare(record, candidate, data, store=path, model_key="new")
    second = fb.compare(record, candidate, data, store=path, model_key="new")
    assert (second.decision, second.n, second.num_predicted) == (first.decision, first.n, 0)
    assert len(candidate.asked) == first.n == first.num_predicted
    full = fb.evaluate(candidate, data, store=path, model_key="new")
    assert full.num_cached == first.n and len(candidate.asked) == N
    with fb.EvaluationStore(path) as store:
        from_store = fb.compare(read_record(store, record.store_id), candidate, data)
    assert (from_store.decision, from_store.n) == (first.decision, first.n)


def test_a_partly_evaluated_baseline(world: Any) -> None:
    data, model = world
    part = fb.evaluate(model(0.8), data, tier=fb.Tier(name="part", num_examples=1000))
    verdict = fb.compare(part, model(0.88), data)
    assert verdict.decision == "better" and verdict.N == 1000 and verdict.num_baseline_predicted == 0
    base = model(0.8)
    verdict = fb.compare(part, model(0.88), data, baseline_predict=base)
    assert verdict.decision == "better" and verdict.N == N
    assert 0 < verdict.num_baseline_predicted == len(base.asked) < verdict.n
    # The candidate of a verdict is a baseline itself.
    chained = fb.compare(verdict.candidate, model(0.7), data, baseline_predict=model(0.88))
    assert chained.decision == "worse" and chained.N == N


def test_a_candidates_value_follows_from_the_baselines(world: Any, baseline: fb.EvaluationRecord) -> None:
    data, model = world
    candidate = model(0.85)
    verdict = fb.compare(baseline, candidate, data)
    value = verdict.candidate["accuracy"]
    assert value.low <= fb.evaluate(candidate, data)["accuracy"].value <= value.high
    assert verdict.candidate.tier == "comparison" and verdict.candidate.n == verdict.n


def test_metrics_where_less_is_better() -> None:
    generator = np.random.default_rng(0)
    data = [(np.array([i]), float(value)) for i, value in enumerate(generator.random(1000))]
    truth = np.array([reference for _, reference in data])

    def off_by(error: float) -> Any:
        return lambda inputs: np.clip(truth[inputs[:, 0]] + error, 0, 1.5)

    record = fb.evaluate(off_by(0.2), data, ["mae"])
    for error, decision in ((0.05, "better"), (0.45, "worse")):
        verdict = fb.compare(record, off_by(error), data, metric="mae", value_range=(0.0, 1.0))
        assert verdict.decision == decision and verdict.n < 1000
        assert (verdict.difference.mid > 0) == (decision == "better")
    with pytest.raises(fb.InvalidInputError, match="value_range"):
        fb.compare(record, off_by(0.1), data, metric="mae")


def test_limits_executors_and_progress(world: Any, baseline: fb.EvaluationRecord) -> None:
    import time

    data, model = world
    candidate, seen = model(0.802, churn=0.02), []

    def slow(inputs: Any) -> Any:
        time.sleep(0.03)
        return candidate(inputs)

    verdict = fb.compare(baseline, slow, data, limit=fb.Budget(wall_hours=0.3 / 3600), on_progress=seen.append)
    assert verdict.decision == "undecided" and verdict.passed is None and verdict.reason == "the limit was reached"
    assert seen[-1].num_examples == verdict.n and seen[-1].low <= seen[-1].value <= seen[-1].high
    alone = fb.compare(baseline, model(0.84), data)
    with ThreadPoolExecutor(3) as pool:
        together = fb.compare(baseline, model(0.84), data, executor=pool)
    assert (together.decision, together.n, together.interval) == (alone.decision, alone.n, alone.interval)


def test_a_baseline_of_other_data_is_refused(world: Any, baseline: fb.EvaluationRecord, questions: Any) -> None:
    data, model = world
    changed = questions(N)
    changed.references[0] = (changed.references[0] + 1) % 3
    for other, message in ((changed, "3999 of the 4000"), (questions(100, seed=9), "0 of the 100")):
        with pytest.raises(fb.InvalidInputError, match=f"another data set: {message}"):
            fb.compare(baseline, model(0.9), other)
    shuffled = [data[int(index)] for index in np.random.default_rng(0).permutation(N)]
    assert fb.compare(baseline, model(0.9), shuffled).decision == "better"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 1.0}, "alpha"),
        ({"margin": -0.1}, "margin must be"),
        ({"margin": float("nan")}, "margin must be"),
        ({"metric": "f1_macro"}, "isn't one"),
        ({"metric": "mse"}, "no bounds"),
        ({"metric": "top_k_accuracy"}, "no values per example of 'top_k_accuracy'"),
        ({"metric": "acuracy"}, "Did you mean"),
        ({"batch_size": 0}, "batch_size"),
        ({"value_range": (1.0, 0.0)}, "low < high"),
    ],
)
def test_wrong_use_is_told(world: Any, baseline: fb.EvaluationRecord, options: dict[str, Any], message: str) -> None:
    data, model = world
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.compare(baseline, model(0.8), data, **options)


def test_other_options_of_the_metric_are_refused(world: Any, baseline: fb.EvaluationRecord) -> None:
    data, model = world
    with pytest.raises(fb.InvalidInputError, match="num_classes"):
        fb.compare(baseline, model(0.8), data, metric=fb.metrics.get("accuracy", num_classes=3))
    with pytest.raises(fb.InvalidInputError, match="no results per example"):
        fb.compare(fb.EvaluationRecord(values={}, num_examples=5, seconds=0.0), model(0.8), data)
    with pytest.raises(fb.InvalidInputError, match="no example"):
        fb.compare(baseline, model(0.8), [])
