import json
import math

import numpy as np
import pytest
import torch

import fastbudget as fb
from fastbudget.evaluation import Cadence, Tier

N = 2000
QUICK, STANDARD = Tier(name="quick", num_examples=100), Tier(name="standard", num_examples=500)


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Answers(torch.nn.Module):
    """A model that knows the answers to some of the questions."""

    def __init__(self, right):
        super().__init__()
        self.register_buffer("right", torch.as_tensor(right))

    def forward(self, questions):
        return torch.where(self.right[questions], questions % 7, (questions + 1) % 7)


DATA = [(index, index % 7) for index in range(N)]
SECONDS_PER_EXAMPLE = 0.001


class Loop:
    """Training on a clock of its own, with models of given accuracies."""

    def __init__(self, train_s=10.0, **options):
        self.clock, self.train_s, self.num_calls = FakeClock(), train_s, 0
        options = {"quick": QUICK, "standard": STANDARD, "clock": self.clock} | options
        self.cadence = Cadence(self.predict_with, DATA, **options)
        self.order = np.random.default_rng(0).permutation(N)

    def predict_with(self, model):
        def predict(questions):
            self.num_calls += len(questions)
            self.clock.now += SECONDS_PER_EXAMPLE * len(questions)
            return model(torch.as_tensor(questions))

        return predict

    def model(self, accuracy, swapped=0):
        """``swapped`` right answers are others than those of the same accuracy without."""
        right = np.zeros(N, bool)
        right[self.order[swapped : swapped + int(accuracy * N)]] = True
        return Answers(right)

    def epoch(self, accuracy, **options):
        self.clock.now += self.train_s
        return self.cadence(self.model(accuracy, **options))

    @property
    def actions(self):
        return [decision.action for decision in self.cadence.log]


def test_quick_each_time_standard_every_kth_and_full_at_the_end():
    loop = Loop(standard_every=4)
    for swapped in range(8):
        loop.epoch(0.7, swapped=10 * swapped)  # hardly anything changes
    loop.cadence.final(loop.model(0.7))
    assert loop.actions == ["quick"] * 3 + ["standard"] + ["quick"] * 3 + ["standard", "full"]
    assert loop.cadence.log[3].reason == "every 4 calls"
    assert all(decision.reason for decision in loop.cadence.log)
    assert loop.cadence.log[-1].num_examples == N


def test_a_change_on_the_quick_sample_asks_for_a_standard_evaluation():
    loop = Loop(standard_every=100)
    loop.epoch(0.5)
    loop.epoch(0.51)
    loop.epoch(0.9)
    assert loop.actions == ["quick", "quick", "standard"]
    last = loop.cadence.log[-1]
    assert last.verdict == "better"
    assert "quick sample says better" in last.reason
    # The samples are nested: the standard one pays for the rest only.
    assert last.num_predicted == last.num_examples == 500
    assert loop.num_calls == 100 + 100 + 500


def test_evaluation_takes_no_more_than_its_share_final_included():
    loop = Loop(train_s=0.9, standard_every=1)
    for swapped in range(60):
        loop.epoch(0.7, swapped=10 * swapped)
    loop.cadence.final(loop.model(0.7, swapped=10 * 59))
    cadence = loop.cadence
    assert cadence.share <= 0.25
    assert cadence.share > 0.15  # it isn't wasted either
    report = cadence.report()
    assert report["train_to_evaluation"] >= 3
    assert report["counts"]["skipped"] > 0
    skipped = next(decision for decision in cadence.log if decision.action == "skipped")
    assert "beyond 25%" in skipped.reason
    json.dumps(report, allow_nan=False)


def test_an_evaluation_that_is_left_out_returns_nan_and_no_record():
    loop = Loop(train_s=1e-3)
    loop.epoch(0.7)
    assert math.isnan(loop.epoch(0.8)["accuracy"])
    assert loop.cadence.step(loop.model(0.9)) is None
    assert loop.cadence.at_end(loop.model(0.95))["accuracy"] > 0.8
    assert loop.actions == ["quick", "skipped", "skipped", "quick"]
    assert "the last checkpoint might be the best" in loop.cadence.log[-1].reason


def test_a_known_length_spreads_evaluations_over_the_run():
    lengths = {}
    for expected in (None, 10.0):
        loop = Loop(train_s=1.0, expected_train_s=expected)
        for swapped in range(10):
            loop.epoch(0.7, swapped=10 * swapped)
        loop.cadence.final(loop.model(0.7, swapped=90))
        assert loop.cadence.share <= 0.25
        lengths[expected] = loop.actions.index("quick", 1)
    assert lengths[10.0] < lengths[None]  # without it, 2 s for the final evaluation must be earned first


def test_a_smaller_one_is_taken_where_the_larger_breaks_the_share():
    loop = Loop(train_s=7.5, standard_every=2)
    loop.epoch(0.7)  # 0.1 s; 2.0 s are kept for the final one
    loop.epoch(0.7, swapped=10)
    assert loop.actions == ["quick", "standard"]
    loop = Loop(train_s=3.5, standard_every=2)
    loop.epoch(0.7)
    loop.epoch(0.7, swapped=10)
    assert loop.actions == ["quick", "quick"]
    assert "a standard one breaks the share" in loop.cadence.log[-1].reason


def test_the_same_weights_are_not_evaluated_again():
    loop = Loop()
    first = loop.epoch(0.7)
    calls = loop.num_calls
    assert loop.epoch(0.7) == first
    assert loop.actions == ["quick", "reused"]
    assert loop.num_calls == calls


def test_safety_critical_forbids_decisions_from_samples():
    loop = Loop(train_s=1e-3, safety_critical=True)
    for swapped in range(3):
        assert loop.epoch(0.7, swapped=10 * swapped)["accuracy"] == 0.7
    assert loop.actions == ["full"] * 3
    assert loop.cadence.report()["safety_critical"]


def test_the_difference_on_the_same_examples_ranks_and_is_close_to_the_truth():
    loop = Loop(standard_every=2)
    truths = [0.60, 0.64, 0.66, 0.66, 0.67, 0.672]
    errors = [loop.epoch(truth)["accuracy"] - truth for truth in truths]
    # One sample of 100 is off by ±0.05; what it is off by stays the same, so that the ranking is right.
    assert max(errors) - min(errors) < 0.035


def test_the_best_is_what_the_test_called_better():
    loop = Loop(standard_every=1)
    for accuracy in (0.5, 0.8, 0.4):
        loop.epoch(accuracy)
    assert [decision.verdict for decision in loop.cadence.log] == [None, "better", "worse"]
    assert loop.cadence.best["accuracy"].value == pytest.approx(0.8, abs=0.05)


def test_repeated_examples_are_compared_too():
    data = [(index % 300, index % 300 % 7) for index in range(N)]  # each content six or seven times
    cadence = Cadence(Loop().predict_with, data, quick=QUICK, standard=STANDARD, max_share=1.0)
    order = np.random.default_rng(0).permutation(300)
    for count in (90, 270):
        right = np.zeros(N, bool)
        right[order[:count]] = True
        cadence.step(Answers(right))
    assert cadence.log[-1].verdict == "better"
    assert cadence.log[-1].action == "standard"


def test_contenders_hold_the_best_and_leave_out_what_is_certainly_worse():
    loop = Loop(standard_every=1)
    assert loop.cadence.contenders() == ()
    for accuracy in (0.3, 0.798, 0.5, 0.8, 0.795):
        loop.epoch(accuracy)
    assert sorted(loop.cadence.contenders()) == [2, 4, 5]
    values = {number: loop.cadence.final(loop.model(a)) for number, a in ((2, 0.798), (4, 0.8), (5, 0.795))}
    assert max(values, key=lambda number: values[number]["accuracy"].value) == 4
    assert loop.cadence.contenders() == (4,)  # with everything evaluated the others are certainly worse


def test_wrong_verdicts_are_as_rare_as_promised():
    wrong = 0
    for seed in range(40):
        loop = Loop(
            quick=Tier(name="quick", num_examples=300, seed=seed), standard=Tier(name="s", num_examples=600, seed=seed)
        )
        loop.epoch(0.7)
        loop.epoch(0.7, swapped=300)  # as good, though 30% of the answers changed
        wrong += loop.cadence.log[-1].verdict != "undecided"
    assert wrong <= 6  # of 40 at alpha 0.05: more has a chance below 1%


def test_a_ready_evaluate_for_the_trainer(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(600, 8)
    labels = (inputs.sum(1) > 0).long()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=50)
    held_out = [(x, y) for x, y in zip(inputs[:300], labels[:300], strict=True)]
    cadence = Cadence(lambda model: model, held_out, quick=Tier(name="quick", num_examples=50))
    result = fb.Trainer(
        model=torch.nn.Linear(8, 2),
        train_data=loader,
        loss="cross_entropy",
        budget=fb.Budget(wall_hours=1 / 60),
        run_dir=tmp_path / "run",
        evaluate=cadence,
        metric="accuracy",
        evaluate_every=12,
        max_steps=60,
        final_evaluate=cadence.final,
    ).fit()
    assert result.final_metrics.num_examples == 300
    assert cadence.log[-1].action == "full"
    assert cadence.log[-2].action != "skipped"  # the trainer told that training had ended
    assert result.best_step in (0, 12, 24, 36, 48, 60)


def test_times_and_the_best_survive_a_resume(tmp_path):
    loop = Loop(store=tmp_path / "evals.db")
    loop.epoch(0.7)
    state = json.loads(json.dumps(loop.cadence.state_dict()))
    resumed = Loop(store=tmp_path / "evals.db")
    resumed.cadence.load_state_dict(state)
    resumed.epoch(0.2)
    assert resumed.cadence.train_s == pytest.approx(20)
    assert resumed.cadence.log[-1].number == 2
    assert resumed.cadence.log[-1].verdict == "worse"
    assert resumed.cadence.best["accuracy"].value == pytest.approx(0.7, abs=0.1)


def test_contenders_survive_a_resume(tmp_path):
    loop = Loop(store=tmp_path / "evals.db")
    for accuracy in (0.7, 0.71, 0.2):
        loop.epoch(accuracy)
    contenders = loop.cadence.contenders()
    assert set(contenders) == {1, 2}
    resumed = Loop(store=tmp_path / "evals.db")
    resumed.cadence.load_state_dict(json.loads(json.dumps(loop.cadence.state_dict())))
    assert resumed.cadence.contenders() == contenders
    assert resumed.cadence.step(resumed.model(0.7)) is not None and resumed.num_calls == 0
    assert resumed.cadence.log[-1].action == "reused"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_share": 0}, "max_share"),
        ({"standard_every": 0}, "standard_every"),
        ({"alpha": 1.5}, "alpha"),
        ({"expected_train_s": 0.0}, "expected_train_s"),
        ({"metric": "f1_macro"}, "among the metrics"),
        ({"metrics": ["f1_macro"]}, "mean of bounded values"),
        ({"quick": Tier(name="q", num_examples=10, seed=1)}, "same seed"),
        ({"quick": Tier(name="q", num_examples=10, stratified=True)}, "stratified"),
        ({"quick": "qick"}, "Did you mean 'quick'"),
    ],
)
def test_cadences_that_cannot_be(options, message):
    with pytest.raises(fb.InvalidInputError, match=message):
        Loop(**options)
