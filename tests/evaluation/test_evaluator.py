from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastbudget as fb
from fastbudget.stats import wilson_interval

METRICS = ["accuracy", "f1_macro", "precision_weighted", "recall_micro"]


def classify(inputs: Any) -> Any:
    """Scores of three classes: the largest of the three inputs."""
    return inputs


@pytest.fixture(scope="module")
def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(101, 3, generator=generator)
    references = torch.where(torch.rand(101, generator=generator) < 0.7, scores.argmax(1), torch.arange(101) % 3)
    return scores, references


class MapStyle:
    """Only what the protocol asks for: no __iter__, and an index beyond the end is the caller's mistake."""

    def __init__(self, inputs: Any, references: Any) -> None:
        self.inputs, self.references = inputs, references

    def __len__(self) -> int:
        return len(self.references)

    def __getitem__(self, index: int) -> Any:
        assert 0 <= index < len(self)
        return self.inputs[index], self.references[index]


class Batches:
    """Re-iterable and nothing more."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def test_every_kind_of_data_gives_the_same_values(tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    scores, references = tensors
    pieces = list(zip(scores.split(17), references.split(17), strict=True))
    kinds = {
        "data set": TensorDataset(scores, references),
        "map-style": MapStyle(scores.numpy(), references.tolist()),
        "examples": list(zip(scores, references.tolist(), strict=True)),
        "loader": DataLoader(TensorDataset(scores, references), batch_size=10),
        "shuffled": DataLoader(TensorDataset(scores, references), batch_size=7, shuffle=True),
        "batches": pieces,
        "tuple of batches": tuple(pieces),
        "numpy batches": [(x.numpy(), y.numpy()) for x, y in pieces],
        "re-iterable": Batches(pieces),
        "one batch": [(scores, references)],
        "generator": (piece for piece in pieces),
    }
    predicted = scores.argmax(1).numpy()
    for kind, data in kinds.items():
        record = fb.evaluate(classify, data, METRICS)
        assert record.num_examples == 101, kind
        for name in METRICS:
            assert record[name].value == fb.metrics.get(name)(predicted, references.numpy()), (kind, name)
            assert record[name].num_examples == 101


@pytest.mark.parametrize("batch_size", [1, 2, 100, 101, 1000])
def test_the_batch_size_changes_nothing(tensors: tuple[torch.Tensor, torch.Tensor], batch_size: int) -> None:
    sizes = []

    def counting(inputs: torch.Tensor) -> torch.Tensor:
        sizes.append(len(inputs))
        return inputs

    record = fb.evaluate(counting, TensorDataset(*tensors), METRICS, batch_size=batch_size)
    assert record.values == fb.evaluate(classify, [tensors], METRICS).values
    assert sum(sizes) == 101 and max(sizes) == min(batch_size, 101)


def test_language_models_from_batches_and_from_a_data_set() -> None:
    generator = np.random.default_rng(0)
    logits, targets = generator.normal(size=(12, 5, 7)), generator.integers(0, 7, (12, 5))
    targets[3, 2:] = -100
    expected = fb.metrics.get("perplexity")(logits, targets)
    for data in (
        [(logits[:7], targets[:7]), (logits[7:], targets[7:])],
        MapStyle(logits, targets),
        TensorDataset(torch.from_numpy(logits), torch.from_numpy(targets)),
    ):
        record = fb.evaluate(classify, data, ["perplexity", "nll"], batch_size=5)
        assert record["perplexity"].value == pytest.approx(expected, rel=1e-6)
        assert record.num_examples == 12


def test_groups_reach_the_metrics_that_resample() -> None:
    generator = np.random.default_rng(1)
    logits = np.repeat(generator.normal(0, 3, (20, 1, 5)), 6, axis=0).repeat(4, axis=1)
    targets = np.zeros((120, 4), np.int64)
    groups = np.repeat(np.arange(20), 6)
    alone = fb.evaluate(classify, [(logits, targets)], ["nll"])["nll"]
    grouped = fb.evaluate(classify, [(logits, targets)], ["nll"], groups=groups)["nll"]
    assert grouped.value == alone.value and grouped.high - grouped.low > 1.5 * (alone.high - alone.low)
    with pytest.raises(fb.InvalidInputError, match="one entry per example"):
        fb.evaluate(classify, [(logits, targets)], ["nll"], groups=groups[:-1])


def test_confidence_reaches_the_intervals(tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    value = fb.evaluate(classify, [tensors], confidence=0.8)["accuracy"]
    right = round(value.value * 101)
    assert (value.low, value.high) == wilson_interval(right, 101, 0.8) and value.confidence == 0.8


def test_metrics_as_objects_and_as_a_mapping(tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    accuracy = fb.metrics.get("accuracy", num_classes=3)
    assert set(fb.evaluate(classify, [tensors], [accuracy, "f1_micro"]).values) == {"accuracy", "f1_micro"}
    record = fb.evaluate(classify, [tensors], {"mine": accuracy})
    assert record["mine"].value == record.to_json()["mine"]["value"]
    assert record.to_json()["num_examples"] == 101 and record.seconds >= 0


def test_progress_is_told(tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    seen: list[int] = []
    fb.evaluate(classify, TensorDataset(*tensors), batch_size=40, on_batch=seen.append)
    assert seen == [40, 80, 101]


@pytest.mark.parametrize(
    ("data", "metrics", "message"),
    [
        ([], ["accuracy"], "no example"),
        (Batches([]), ["accuracy"], "no example"),
        (MapStyle([], []), ["accuracy"], "no example"),
        ([(torch.zeros(2, 3), torch.tensor([0, 1]))], [], "at least one metric"),
        ([(torch.zeros(2, 3), torch.tensor([0, 1]))], "accuracy", r"write \['accuracy'\]"),
        ([(torch.zeros(2, 3), torch.tensor([0, 1]))], ["acuracy"], "Did you mean 'accuracy'"),
        ([(torch.zeros(2, 3), torch.tensor([0, 1, 2]))], ["accuracy"], "same length"),
        (Batches([torch.zeros(2, 3)]), ["accuracy"], "pairs"),
        (Batches([{"inputs": 1}]), ["accuracy"], "pairs"),
        ([(torch.full((2, 3), float("nan")), torch.tensor([0, 1]))], ["accuracy"], "NaN"),
        ([(torch.zeros(2, 3), torch.tensor([0, -1]))], ["accuracy"], "-1"),
    ],
)
def test_errors(data: Any, metrics: Any, message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.evaluate(classify, data, metrics)


@pytest.mark.parametrize(("right", "low", "high"), [(30, 0.8842967, 1.0), (0, 0.0, 0.1157033)])
def test_all_or_none_of_thirty_right_is_not_certainty(right: int, low: float, high: float) -> None:
    data = [(index, int(index < right)) for index in range(30)]
    record = fb.evaluate(lambda inputs: np.ones(len(inputs), int), data)
    assert (record["accuracy"].low, record["accuracy"].high) == pytest.approx((low, high), abs=1e-7)
    alone = fb.metrics.get("accuracy")
    interval = alone.interval(alone.update(alone.init(), np.ones(30, int), (np.arange(30) < right).astype(int)))
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-7)


def test_a_score_outside_the_bounds_names_the_example() -> None:
    data = [(float(index % 7), float(index % 7)) for index in range(50)]
    baseline = fb.evaluate(lambda inputs: np.asarray(inputs) + 0.5, data, ["mae"])
    wild = lambda inputs: np.asarray(inputs) + 5.0  # noqa: E731
    for compare in (fb.compare, fb.compare_many):
        with pytest.raises(fb.InvalidInputError, match=r"mae of example \d+ is 5, outside its bounds \[0, 1\]"):
            compare(baseline, wild, data, "mae", value_range=(0, 1))
