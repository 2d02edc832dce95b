"""The loop: the steps of a plain one, what stops it, and what it does with bad input."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastbudget as fb
from fastbudget.budget import read_ledger
from fastbudget.checkpoint import CheckpointStore
from fastbudget.training import LearningRateSchedule, TrainingResult, build_optimizer

PLENTY = fb.Budget(wall_hours=10)


def make_data(n: int = 50) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(n, 6, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def make_model(dropout: float = 0.3) -> torch.nn.Module:
    torch.manual_seed(11)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Dropout(dropout),
        torch.nn.Linear(16, 2),
    )


class Noisy(torch.utils.data.Dataset[Any]):
    """Augments with all three generators."""

    def __init__(self) -> None:
        self.data = make_data()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        inputs, target = self.data[index]
        return inputs + 0.1 * torch.randn(6) + np.random.normal() * 0.01 + random.gauss(0, 0.01), target


def score(model: torch.nn.Module) -> dict[str, float]:
    """Iterates a loader and draws random numbers, as evaluations do."""
    right = 0
    for inputs, targets in DataLoader(make_data(), batch_size=20, shuffle=True):
        right += int((model(inputs).argmax(1) == targets).sum())
    np.random.normal(), random.random()
    return {"accuracy": right / 50}


def trainer_of(run_dir: Path, **options: Any) -> fb.Trainer:
    settings: dict[str, Any] = {
        "model": make_model(),
        "train_data": DataLoader(make_data(), batch_size=8, shuffle=True),
        "budget": PLENTY,
        "run_dir": run_dir,
        "evaluate": score,
        "metric": "accuracy",
        "loss": "cross_entropy",
        "optimizer_options": {"lr": 0.01},
        "max_steps": 12,
        "evaluate_every": 5,
    }
    return fb.Trainer(**{**settings, **options})


def last_state(result: TrainingResult) -> dict[str, Any]:
    return CheckpointStore(result.last_checkpoint.parent).load(result.last_checkpoint).state


def assert_same(a: Any, b: Any, where: str = "") -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, np.ndarray):
        assert np.array_equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}.{index}")
    else:
        assert a == b, where


# -- one loop --------------------------------------------------------------------------------------------------------


def test_how_often_a_run_is_evaluated_changes_nothing_of_its_training(tmp_path: Path) -> None:
    states = []
    for index, every in enumerate((1, 3, 100)):
        random.seed(1), np.random.seed(1)
        result = trainer_of(
            tmp_path / str(index), evaluate_every=every, train_data=DataLoader(Noisy(), batch_size=8, shuffle=True)
        ).fit()
        states.append(last_state(result))
    assert_same(states[0], states[1])
    assert_same(states[0], states[2])


def test_a_plain_loop_makes_the_same_weights(tmp_path: Path) -> None:
    """The slow, obvious reference: torch's own loop over the same batches."""
    inputs, targets = make_data().tensors
    data = list(zip(inputs.split(10), targets.split(10), strict=True))
    schedule = LearningRateSchedule(shape="linear", warmup_steps=3, final_fraction=0.1)
    result = trainer_of(
        tmp_path, model=make_model(0.0), train_data=data, schedule=schedule, max_steps=9, clip_grad_norm=0.5
    ).fit()
    model = make_model(0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(9):
        inputs, targets = data[step % 5]
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1, (step + 1) / 3) * (1 - 0.9 * step / 9)
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    for name, expected in model.state_dict().items():
        assert torch.allclose(last_state(result)["model"][name].double(), expected.double(), rtol=1e-5, atol=1e-6), name


# -- what stops a run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_with_its_step(tmp_path: Path, bad: float) -> None:
    calls = 0

    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        value = torch.nn.functional.cross_entropy(outputs, batch[1])
        return value * bad if calls == 8 else value

    with pytest.raises(fb.NonFiniteLossError, match=r"at step 8\b"):
        trainer_of(tmp_path, loss=loss).fit()
    store = CheckpointStore(tmp_path / "checkpoints", metric="accuracy")
    kept = store.load()
    assert kept.step == 5 and all(torch.isfinite(value).all() for value in kept.state["model"].values())
    assert store.best() is not None
    assert read_ledger(tmp_path).last_reason == "error: NonFiniteLossError"
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "loss" in record] == list(range(1, 8))
    result = trainer_of(tmp_path).fit(resume=True)
    assert result.stop_reason == "completed" and result.steps == 12


def test_a_budget_ends_a_run_with_its_best_saved_and_evaluated(tmp_path: Path) -> None:
    def slowly(model: torch.nn.Module) -> dict[str, float]:
        time.sleep(0.05)  # the reserve is a multiple of this, so a stall of the machine fits in it
        return score(model)

    result = trainer_of(
        tmp_path,
        budget=fb.Budget(wall_hours=2.5 / 3600),
        max_steps=None,
        evaluate_every=None,
        evaluate=slowly,
        final_evaluate=lambda model: (model.training, slowly(model)),
    ).fit()
    assert result.stop_reason == "budget" and result.steps > 0
    assert result.spend["device_hours"] <= result.spend["budget_device_hours"]
    best = CheckpointStore(tmp_path / "checkpoints").load(result.best_checkpoint)
    assert best.metrics == result.best_metrics and "accuracy" in best.metrics
    training, final = result.final_metrics
    assert not training and final.keys() == {"accuracy"}


def test_the_model_ends_as_its_best_checkpoint(tmp_path: Path) -> None:
    scores = iter([0.1, 0.9, 0.3, 0.2, 0.1, 0.0])
    model = make_model()
    result = trainer_of(tmp_path, model=model, evaluate=lambda _: {"accuracy": next(scores)}).fit()
    assert result.best_step == 5 and result.best_metrics == {"accuracy": 0.9}
    assert_same(
        dict(model.state_dict()), CheckpointStore(tmp_path / "checkpoints").load(result.best_checkpoint).state["model"]
    )
    low = iter([0.5, 0.9, 0.3, 0.6])
    result = trainer_of(tmp_path / "min", evaluate=lambda _: {"accuracy": next(low)}, mode="min").fit()
    assert result.best_step == 10


def test_a_run_goes_on_past_a_damaged_newest_checkpoint(tmp_path: Path) -> None:
    trainer_of(tmp_path, max_steps=10).fit()
    store = CheckpointStore(tmp_path / "checkpoints")
    newest = store.paths()[-1] / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"step_000000000010"):
        result = trainer_of(tmp_path, max_steps=12).fit(resume=True)
    assert result.steps == 12 and all(store.verify(path) is None for path in store.paths())


def test_a_used_directory_is_not_used_again_by_accident(tmp_path: Path) -> None:
    result = trainer_of(tmp_path).fit()
    before = sorted(path.name for path in result.last_checkpoint.parent.iterdir())
    with pytest.raises(fb.RunDirectoryError, match="holds checkpoints already"):
        trainer_of(tmp_path).fit()
    assert sorted(path.name for path in result.last_checkpoint.parent.iterdir()) == before
    with pytest.raises(fb.RunDirectoryError, match="no usable checkpoint"):
        trainer_of(tmp_path / "new").fit(resume=True)


def test_a_finished_run_resumes_to_nothing_more(tmp_path: Path) -> None:
    first = trainer_of(tmp_path).fit()
    again = trainer_of(tmp_path).fit(resume=True)
    assert again.steps == first.steps == 12 and again.best_checkpoint == first.best_checkpoint


# -- bad input -----------------------------------------------------------------------------------------------------


def test_a_loader_without_batches(tmp_path: Path) -> None:
    for empty in ([], DataLoader(make_data(5), batch_size=8, drop_last=True)):
        with pytest.raises(fb.InvalidInputError, match="yields no batch"):
            trainer_of(tmp_path / str(id(empty)), train_data=empty).fit()


def test_data_that_can_be_read_once_only(tmp_path: Path) -> None:
    def batches() -> Iterator[Any]:
        yield from [(torch.zeros(2, 6), torch.zeros(2, dtype=torch.long))] * 3

    for once in (batches(), iter([1]), zip([1], [2], strict=True)):
        with pytest.raises(fb.InvalidInputError, match="only once"):
            trainer_of(tmp_path, train_data=once)
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_model(tmp_path: Path) -> None:
    model = make_model().requires_grad_(False)
    with pytest.raises(fb.InvalidInputError, match="no trainable parameter"):
        trainer_of(tmp_path, model=model)
    for parameter in model[4].parameters():
        parameter.requires_grad_(True)
    before = model[0].weight.clone()
    trainer_of(tmp_path, model=model).fit()
    assert torch.equal(model[0].weight, before)


def test_losses_that_are_not_scalars(tmp_path: Path) -> None:
    for index, (loss, message) in enumerate(
        [
            (lambda outputs, batch: outputs, r"shape \[8, 2\]"),
            (lambda outputs, batch: 1.5, "float"),
            (lambda outputs, batch: torch.tensor(1.0), "doesn't depend on any trainable"),
            (None, r"shape \[8, 2\]"),
        ]
    ):
        with pytest.raises(fb.InvalidInputError, match=message):
            trainer_of(tmp_path / str(index), loss=loss).fit()


def test_the_models_own_loss(tmp_path: Path) -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_model()

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.cross_entropy(self.inner(inputs), labels)}

    data = [{"inputs": torch.randn(4, 6), "labels": torch.tensor([0, 1, 1, 0])}]
    result = trainer_of(
        tmp_path, model=Own(), loss=None, train_data=data, evaluate=lambda _: {"accuracy": 0.5}, max_steps=3
    ).fit()
    assert result.steps == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamV"}, "Did you mean 'adam"),
        ({"optimizer": "lion"}, "Known: 'adamw', 'adam', 'sgd'"),
        ({"optimizer_options": {"learning_rate": 1}}, "refuses its options"),
        ({"optimizer_options": {"lr": -1}}, "refuses its options"),
        ({"loss": "crossentropy"}, "Did you mean 'cross_entropy'"),
        ({"max_steps": 0}, "max_steps"),
        ({"grad_accumulation": 0}, "grad_accumulation"),
        ({"evaluate_every": -1}, "evaluate_every"),
        ({"max_steps": None, "decay_over": "steps"}, "needs max_steps"),
    ],
    ids=str,
)
def test_options_are_checked_before_anything_runs(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        trainer_of(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_without_the_metric(tmp_path: Path) -> None:
    with pytest.raises(fb.InvalidInputError, match=r"must return the metric 'accuracy'; it returned \['acc'\]"):
        trainer_of(tmp_path, evaluate=lambda _: {"acc": 1.0}).fit()


def test_batches_without_a_batch_dimension(tmp_path: Path) -> None:
    with pytest.raises(fb.InvalidInputError, match="batch dimension"):
        trainer_of(tmp_path, train_data=[(torch.tensor(1.0), torch.tensor(1))]).fit()


def test_a_sink_that_raises_is_dropped_and_the_run_goes_on(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    calls = 0

    def broken(record: dict[str, Any]) -> None:
        nonlocal calls
        calls += 1
        raise ConnectionError("no network")

    with pytest.warns(RuntimeWarning, match="no network"):
        result = trainer_of(tmp_path, sinks=[broken, seen.append]).fit()
    assert result.stop_reason == "completed" and calls == 1
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == seen and len([record for record in seen if "loss" in record]) == 12


# -- parts ---------------------------------------------------------------------------------------------------------


def test_optimizers_as_given() -> None:
    model = make_model()
    made = torch.optim.SGD(model.parameters(), lr=1)
    assert build_optimizer(made, model) is made
    built = build_optimizer(lambda params: torch.optim.Adagrad(params, lr=3), model)
    assert isinstance(built, torch.optim.Adagrad)
    model[0].requires_grad_(False)
    assert len(build_optimizer("sgd", model, lr=1).param_groups[0]["params"]) == 4


@pytest.mark.parametrize(("decay_over", "falls_with_the_budget"), [("steps", False), ("budget", True)])
def test_the_learning_rate_falls_with_the_budget_where_that_ends_first(
    tmp_path: Path, decay_over: str, falls_with_the_budget: bool
) -> None:
    class Slow(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.01)
            return super().forward(x)

    rates: list[float] = []
    fb.Trainer(
        model=Slow(4, 2),
        train_data=[(torch.randn(8, 4), torch.randint(2, (8,)))],
        loss="cross_entropy",
        optimizer_options={"lr": 1.0},
        budget=fb.Budget(wall_hours=1.5 / 3600),
        run_dir=tmp_path,
        evaluate=lambda model: {"score": 1.0},
        metric="score",
        max_steps=100_000,
        decay_over=decay_over,
        evaluate_every=100_000,
        sinks=[lambda record: rates.append(record["lr"]) if "lr" in record else None],
    ).fit()
    assert rates[0] > 0.8 and rates == sorted(rates, reverse=True)
    assert (rates[-1] < 0.2) == falls_with_the_budget


def test_evaluations_that_give_no_number_end_with_the_last_checkpoint_and_valid_json(tmp_path: Path) -> None:
    trainer = fb.Trainer(
        model=torch.nn.Linear(4, 2),
        train_data=[(torch.randn(8, 4), torch.randint(2, (8,)))],
        loss="cross_entropy",
        budget=fb.Budget(wall_hours=0.01),
        run_dir=tmp_path,
        evaluate=lambda model: {"score": float("nan")},
        metric="score",
        max_steps=3,
    )
    result = trainer.fit()
    assert result.best_checkpoint == result.last_checkpoint and result.best_metrics == {}
    lines = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "metrics.jsonl").open()]
    assert lines[0]["metrics"] == {"score": None}


def saved_steps(tmp_path: Path, **options: Any) -> list[int]:
    """Train 10 steps with one evaluation in the end; return what was saved when."""
    steps: list[int] = []

    class Watched(CheckpointStore):
        def save(self, step: int, *args: Any, **kwargs: Any) -> Path:
            steps.append(step)
            return super().save(step, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastbudget.training.trainer.CheckpointStore", Watched)
        result = fb.Trainer(
            model=make_model(), optimizer="sgd", optimizer_options={"lr": 0.1}, loss="cross_entropy",
            train_data=DataLoader(make_data(), batch_size=10), budget=PLENTY, run_dir=tmp_path, evaluate=score,
            metric="accuracy", max_steps=10, evaluate_every=100, **options,
        ).fit()  # fmt: skip
    assert result.last_checkpoint.name.endswith("10")
    assert CheckpointStore(tmp_path / "checkpoints").describe(result.last_checkpoint)[1], "the last one is evaluated"
    return steps


def test_saves_between_evaluations_come_as_often_as_asked(tmp_path: Path) -> None:
    assert saved_steps(tmp_path / "none") == [0, 10]
    assert saved_steps(tmp_path / "some", checkpoint_every=5) == [0, 5, 10]
    assert saved_steps(tmp_path / "many", checkpoint_every=1) == list(range(11))


def test_saves_come_as_often_as_the_machine_fails(tmp_path: Path) -> None:
    assert saved_steps(tmp_path / "reliable", mtbf_s=1e12) == [0, 10]
    assert saved_steps(tmp_path / "dying", mtbf_s=1e-9) == list(range(11))


def test_mtbf_must_be_positive() -> None:
    with pytest.raises(fb.InvalidInputError, match="mtbf_s must be above 0 seconds, got 0"):
        fb.Trainer(
            model=make_model(), train_data=DataLoader(make_data()), budget=PLENTY, run_dir="unused", evaluate=score,
            metric="accuracy", mtbf_s=0,
        )  # fmt: skip
