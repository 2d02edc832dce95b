import json

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.evaluation import (
    PHASES,
    Cadence,
    Evidence,
    Task,
    compare_preprocessing,
    evaluate_suite,
    find_alerts,
    phase,
    preprocessing_fingerprint,
)

N = 3000
DATA = [(index, index % 4) for index in range(N)]


def predict(inputs):
    inputs = np.asarray(inputs)
    return np.where(inputs % 20 == 0, (inputs + 1) % 4, inputs % 4)


def test_each_phase_makes_its_cadence():
    for name in PHASES:
        made = phase(name).cadence(lambda model: predict, DATA)
        assert isinstance(made, Cadence)
        assert made.max_share == phase(name).max_share
        assert made.safety_critical is (name == "release")
    assert phase("tuning").cadence(lambda model: predict, DATA, max_share=0.1).max_share == 0.1
    with pytest.raises(fb.InvalidInputError, match="Did you mean 'release'"):
        phase("relase")
    with pytest.raises(fb.InvalidInputError, match="name your own"):
        phase("tuning").cadence(lambda model: predict, DATA, task="translation")


def test_an_empty_checklist_is_not_done():
    for name in PHASES:
        checklist = phase(name).checklist()
        assert {item.status for item in checklist.items} == {"not done"}
        assert not checklist.passed


def test_a_release_passes_only_with_all_evidence(tmp_path):
    record = fb.evaluate(predict, DATA, model_key="new")
    same = preprocessing_fingerprint(predict, samples=[1, 2])
    evidence = Evidence(
        record=record,
        metric="accuracy",
        alerts=find_alerts(record),
        preprocessing=compare_preprocessing(same, same),
        verdict=fb.compare(fb.evaluate(predict, DATA, model_key="old"), predict, DATA, margin=0.005, model_key="new"),
        suite=evaluate_suite(predict, [Task(name="first half", data=DATA[: N // 2])]),
        baseline_status="approved",
    )
    checklist = phase("release").checklist(evidence)
    assert [item.name for item in checklist.items if item.status != "pass"] == ["untouched", "errors_read"]
    assert not checklist.passed
    for name in ("untouched", "errors_read"):
        checklist = checklist.answered(name, "pass", "looked at the split's file and at 50 errors")
    assert checklist.passed
    document = json.loads(checklist.write(tmp_path).read_text())
    assert document["passed"]
    assert document["items"][0]["evidence"] == "3,000 of 3,000 examples"


def test_each_item_can_fail():
    record = fb.evaluate(predict, DATA, tier=fb.Tier(name="few", num_examples=50))
    evidence = Evidence(
        record=record,
        alerts=find_alerts(record, history=[{"accuracy": 0.2}] * 6),
        preprocessing=compare_preprocessing(
            preprocessing_fingerprint(lambda x: x, samples=[1]), preprocessing_fingerprint(lambda x: x + 1, samples=[1])
        ),
        verdict=fb.compare(fb.evaluate(lambda x: np.asarray(x) % 4, DATA), predict, DATA),
        suite=evaluate_suite(predict, [Task(name="broken", data=[])], keep_going=True),
        baseline_status="draft",
    )
    checklist = phase("release").checklist(evidence)
    failing = {item.name for item in checklist.items if item.status == "fail"}
    assert failing == {"complete", "interval", "alerts", "preprocessing", "baseline", "slices", "approved"}


def test_the_share_of_a_cadence_is_checked():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    clock = Clock()

    def slow(inputs):
        clock.now += 1.0
        return predict(inputs)

    cadence = phase("tuning").cadence(lambda model: slow, DATA, clock=clock)
    cadence.step({"weights": np.ones(3)})
    assert phase("tuning").checklist(Evidence(cadence=cadence))["share"].status == "fail"
    clock.now += 100
    cadence.step({"weights": np.zeros(3)})
    assert phase("tuning").checklist(Evidence(cadence=cadence))["share"].status == "pass"


def test_answers_need_evidence():
    checklist = phase("release").checklist()
    with pytest.raises(fb.InvalidInputError, match="evidence"):
        checklist.answered("untouched", "pass", " ")
    with pytest.raises(fb.InvalidInputError, match="status"):
        checklist.answered("untouched", "fine", "x")
    with pytest.raises(fb.InvalidInputError, match="Did you mean 'untouched'"):
        checklist.answered("untuched", "pass", "x")
