"""Samples are random, decided by content and seed, and say what they are samples of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastbudget as fb
from fastbudget.evaluation import TIERS
from fastbudget.evaluation.sampling import canonical_order, draw_order, stratified_sample
from fastbudget.store import hash_examples
from fastbudget.store.content_hash import as_keys

QUICK = fb.Tier(name="quick", num_examples=50)


class Reordered:
    def __init__(self, data: Any, order: Any) -> None:
        self.data, self.order = data, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.data[int(self.order[index])]


def test_a_sample_is_decided_by_content_and_seed_and_is_not_the_first_n(questions: Any, answers: Any) -> None:
    data = questions(1000)
    drawn = {}
    for name, view, tier in [
        ("as it is", data, QUICK),
        ("shuffled", Reordered(data, np.random.default_rng(0).permutation(1000)), QUICK),
        ("reversed", Reordered(data, np.arange(1000)[::-1]), QUICK),
        ("other seed", data, fb.Tier(name="quick", num_examples=50, seed=1)),
        ("half gone", Reordered(data, np.arange(0, 1000, 2)), QUICK),
    ]:
        model = answers(data, [])
        record = fb.evaluate(model, view, tier=tier)
        assert (record.n, record.N, record.tier) == (50, len(view), "quick")
        drawn[name] = model.asked
    assert drawn["as it is"] == drawn["shuffled"] == drawn["reversed"]
    assert len(set(drawn["as it is"])) == 50 and max(drawn["as it is"]) > 700
    assert len(set(drawn["as it is"]) & set(drawn["other seed"])) < 15
    # Of the examples that stayed, those that were in the sample are in it still: they come first among the rest too.
    stayed = [number for number in drawn["as it is"] if number % 2 == 0]
    assert drawn["half gone"][: len(stayed)] == stayed


def test_every_example_has_the_same_chance() -> None:
    hashes = hash_examples(range(40))
    counts = sum(np.bincount(draw_order(hashes, seed)[:10], minlength=40) for seed in range(2000))
    # Binomial(2000, 1/4): five standard deviations are 97.
    assert abs(counts - 500).max() < 97
    assert sorted(draw_order(hashes, 7)) == list(range(40))


def test_repeated_contents_are_drawn_once_each() -> None:
    hashes = hash_examples([0] * 20 + [1] * 20)
    assert sorted(draw_order(hashes, 0)) == list(range(40)) == sorted(canonical_order(hashes))
    assert (np.diff(as_keys(hashes)[canonical_order(hashes)]["high"].astype(float)) >= 0).all()


def test_strata_get_their_share_and_every_example_the_same_chance() -> None:
    strata = ["rare"] * 7 + ["b"] * 43 + ["c"] * 50
    hashes = hash_examples(range(100))
    counts = np.zeros(100)
    for seed in range(1500):
        sample = stratified_sample(strata, draw_order(hashes, seed), 20, seed)
        assert len(set(sample.tolist())) == 20
        for name, share in (("rare", 1.4), ("b", 8.6), ("c", 10.0)):
            drawn = sum(strata[index] == name for index in sample)
            assert math.floor(share) <= drawn <= math.ceil(share)
        counts[sample] += 1
    assert abs(counts - 300).max() < 5 * math.sqrt(1500 * 0.2 * 0.8)


def test_a_stratified_tier(questions: Any, answers: Any) -> None:
    data = questions(900)
    data.references[:] = np.arange(900) % 9 == 0  # one in nine
    model = answers(data, [])
    fb.evaluate(model, data, tier=fb.Tier(name="even", fraction=0.1, stratified=True))
    assert len(model.asked) == 90 and data.references[model.asked].sum() == 10


def test_intervals_cover_the_value_on_the_whole_set(questions: Any, answers: Any) -> None:
    data = questions(300)
    model = answers(data, np.random.default_rng(3).choice(300, 60, replace=False))
    full = fb.evaluate(model, data)
    assert full.decided and full["accuracy"].value == 0.8 and full["accuracy"].method == "Wilson"
    covered, widths = 0, []
    for seed in range(200):
        record = fb.evaluate(model, data, tier=fb.Tier(name="half", fraction=0.5, seed=seed))
        value = record["accuracy"]
        covered += value.low <= 0.8 <= value.high
        widths.append(value.high - value.low)
        assert not record.decided and record.stop_reason == "sample" and "finite population" in value.method
    assert covered >= 180  # 95% of 200, less what chance may take
    # Half the set is known: the interval is narrower than for an endless population, by √(1 - n/N).
    alone = fb.stats.wilson_interval(120, 150)
    assert np.mean(widths) == pytest.approx((alone[1] - alone[0]) * math.sqrt(150 / 299), rel=0.02)


def test_means_of_other_numbers_have_it_too() -> None:
    values = np.random.default_rng(0).random(200)
    data = [(float(value), 0.0) for value in values]
    record = fb.evaluate(lambda inputs: inputs, data, ["mae"], tier=fb.Tier(name="t", num_examples=150))
    half = fb.evaluate(lambda inputs: inputs, [data[i] for i in range(150)], ["mae"])["mae"]
    value = record["mae"]
    assert value.low < values.mean() < value.high and "finite population" in value.method
    assert value.high - value.low == pytest.approx((half.high - half.low) * math.sqrt(50 / 199), rel=0.15)


def test_macro_f1_of_a_sample_has_an_interval_too(questions: Any, answers: Any) -> None:
    data = questions(600)
    record = fb.evaluate(answers(data, range(0, 600, 5)), data, ["f1_macro", "accuracy"], tier=QUICK)
    value = record["f1_macro"]
    assert value.low < value.value < value.high and "approximate" in value.method and value.num_examples == 50


def test_small_data_is_evaluated_whole(questions: Any, answers: Any) -> None:
    data = questions(30)
    for tier in ("quick", "standard", "full"):
        record = fb.evaluate(answers(data, [0]), data, tier=tier)
        assert record.decided and (record.n, record.N, record.stop_reason) == (30, 30, "complete")


def test_a_tier_names_its_metrics(questions: Any, answers: Any) -> None:
    data = questions(30)
    tier = fb.Tier(name="mine", metrics=("f1_macro",))
    assert set(fb.evaluate(answers(data, [0]), data, ["accuracy"], tier=tier).values) == {"f1_macro"}


def test_the_limit_ends_it_before_a_batch_that_would_go_beyond(questions: Any, answers: Any) -> None:
    import time

    data = questions(400)
    model = answers(data, [])

    def slow(inputs: Any) -> Any:
        time.sleep(0.05)
        return model(inputs)

    tier = fb.Tier(name="short", limit=fb.Budget(gpu_hours=2 * 0.4 / 3600))
    record = fb.evaluate(slow, data, tier=tier, batch_size=20, num_devices=2)
    assert record.stop_reason == "limit" and not record.decided and 20 <= record.n < 180
    assert record.seconds < 0.5 and record.device_seconds == pytest.approx(2 * record.seconds)
    assert model.asked != list(range(record.n))  # a random part, not the first
    assert "finite population" in record["accuracy"].method


def test_a_threshold_ends_it_as_soon_as_it_is_certain(questions: Any, answers: Any) -> None:
    data = questions(5000)
    model = answers(data, range(0, 5000, 10))
    for threshold, word in ((0.8, "above"), (0.97, "below")):
        record = fb.evaluate(model, data, thresholds={"accuracy": threshold}, batch_size=50)
        assert record.decisions == {"accuracy": word} and record.decided and record.stop_reason == "decided"
        value = record["accuracy"]
        assert record.n < 1500 and value.low <= 0.9 <= value.high and "valid at any time" in value.method
        assert (value.low > threshold) if word == "above" else (value.high < threshold)
    two = fb.evaluate(
        model, data, ["accuracy", "f1_macro"], thresholds={"accuracy": 0.85}, tier=fb.Tier(name="t", seed=4)
    )
    assert two.decisions == {"accuracy": "above"}
    short = fb.evaluate(model, data, thresholds={"accuracy": 0.899}, tier=fb.Tier(name="tiny", num_examples=100))
    assert short.decisions == {"accuracy": "undecided"} and not short.decided and short.n == 100
    exact = fb.evaluate(model, data, thresholds={"accuracy": 0.9001}, batch_size=1000)
    assert exact.decisions == {"accuracy": "below"} and exact["accuracy"].value == pytest.approx(0.9, abs=0.02)


def test_groups_are_drawn_together(questions: Any, answers: Any) -> None:
    data = questions(2000)
    model = answers(data, range(200))
    groups = np.arange(2000) // 8
    record = fb.evaluate(model, data, thresholds={"accuracy": 0.8}, groups=groups, batch_size=40)
    assert record.decisions == {"accuracy": "above"} and record.n < 1500
    assert (np.bincount(groups[model.asked], minlength=250) % 8 == 0).all()
    candidate = answers(data, range(600))
    verdict = fb.compare(fb.evaluate(model, data), candidate, data, groups=groups)
    assert verdict.decision == "worse" and verdict.n < 1500
    assert (np.bincount(groups[candidate.asked], minlength=250) % 8 == 0).all()
    with pytest.raises(fb.InvalidInputError, match="one entry per example"):
        fb.compare(fb.evaluate(model, data), candidate, data, groups=groups[:-1])


def test_thresholds_are_seldom_wrong(questions: Any, answers: Any) -> None:
    data = questions(200)
    model = answers(data, range(0, 200, 10))  # exactly 0.9: above 0.8999 in truth
    wrong = 0
    for seed in range(60):
        tier = fb.Tier(name="t", seed=seed)
        record = fb.evaluate(model, data, thresholds={"accuracy": 0.905}, tier=tier, batch_size=5, confidence=0.8)
        wrong += record.decisions["accuracy"] != "below"
    assert wrong <= 60 * 0.2


@pytest.mark.parametrize(
    "kind",
    [
        lambda x, y: TensorDataset(x, y),
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True),
        lambda x, y: list(zip(x.split(11), y.split(11), strict=True)),
        lambda x, y: [(a.numpy(), int(b)) for a, b in zip(x, y, strict=True)],
    ],
)
def test_every_kind_of_data_gives_the_same_sample(kind: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 3, generator=generator), torch.randint(3, (400,), generator=generator)
    record = fb.evaluate(lambda inputs: inputs, kind(x, y), tier=QUICK, batch_size=16)
    expected = fb.evaluate(lambda inputs: inputs, TensorDataset(x, y), tier=QUICK)
    assert record["accuracy"] == expected["accuracy"] and record.data_hash == expected.data_hash


def test_progress_carries_a_running_interval(questions: Any, answers: Any) -> None:
    data, seen = questions(300), []
    fb.evaluate(answers(data, range(0, 300, 4)), data, tier=fb.Tier(name="t", fraction=0.5), batch_size=50,
                on_progress=seen.append)  # fmt: skip
    assert [(p.num_examples, p.planned, p.metric) for p in seen] == [(n, 150, "accuracy") for n in (50, 100, 150)]
    assert all(p.low < p.value < p.high for p in seen)
    assert seen[2].high - seen[2].low < seen[0].high - seen[0].low


def test_texts_and_mappings_reach_predict_as_they_are() -> None:
    texts = [(f"question {i}", f"answer {i % 3}") for i in range(20)]

    def predict(inputs: list[str]) -> list[str]:
        assert isinstance(inputs, list) and isinstance(inputs[0], str)
        return [f"answer {int(text.split()[1]) % 3}" for text in inputs]

    class ExactMatch(fb.metrics.Metric):  # type: ignore[type-arg]
        name, is_mean, example_range = "em", True, (0.0, 1.0)

        def init(self) -> Any:
            raise NotImplementedError

        update = merge = result = interval = init  # a mean needs none of them

        def per_example(self, predictions: Any, references: Any) -> Any:
            return np.array([p == r for p, r in zip(predictions, references, strict=True)], float)

    assert fb.evaluate(predict, texts, [ExactMatch()], batch_size=8)["em"].value == 1.0
    pairs = [({"a": np.float32([i, 0, 0]), "b": i}, i % 3) for i in range(10)]
    record = fb.evaluate(lambda batch: np.eye(3)[batch["b"] % 3], pairs, batch_size=4)
    assert record["accuracy"].value == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tier": "fast"}, "tier must be one of"),
        ({"tier": "standart"}, "Did you mean 'standard'"),
        ({"thresholds": {"acuracy": 0.9}}, "Did you mean 'accuracy'"),
        ({"thresholds": {"accuracy": 1.5}}, "must be inside"),
        ({"thresholds": {"f1_macro": 0.5}, "metrics": ["f1_macro"]}, "means of bounded values"),
        ({"thresholds": {"accuracy": 0.5}, "shard": (0, 2)}, "exclude each other"),
        ({"shard": (2, 2)}, "rank, world_size"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"num_devices": 0}, "num_devices must be at least 1"),
        ({"nan": "skip"}, "nan must be one of"),
    ],
)
def test_wrong_options_are_told(questions: Any, answers: Any, options: dict[str, Any], message: str) -> None:
    data = questions(10)
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.evaluate(answers(data, []), data, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_examples": 0}, "at least 1"),
        ({"fraction": 0.0}, "above 0"),
        ({"fraction": 1.5}, "at most 1"),
        ({"num_examples": 5, "fraction": 0.5}, "not both"),
    ],
)
def test_wrong_tiers_are_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.Tier(name="t", **options)
    assert set(TIERS) == {"quick", "standard", "full"}


def test_a_stream_can_only_be_evaluated_whole(questions: Any, answers: Any) -> None:
    with pytest.raises(fb.InvalidInputError, match="tier='full'"):
        fb.evaluate(answers(questions(4), []), iter([]), tier="quick")
