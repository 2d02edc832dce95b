"""Bad input is refused when the trainer is made: before the clock starts and anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fastbudget as fb
from fastbudget.training.batch_stream import BatchStream
from fastbudget.training.trainer_checks import check_data
from fastbudget.training.training_step import TrainingStep


def trainer_of(run_dir: Path, **options: Any) -> fb.Trainer:
    settings: dict[str, Any] = {
        "model": torch.nn.Linear(4, 2), "train_data": [(torch.randn(8, 4), torch.randint(2, (8,)))] * 4,
        "loss": "cross_entropy", "budget": fb.Budget(wall_hours=1), "run_dir": run_dir,
        "evaluate": lambda model: {"score": 0.0}, "metric": "score", "max_steps": 3,
    }  # fmt: skip
    return fb.Trainer(**{**settings, **options})


class Nothing(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    "data", [[], DataLoader(range(5), batch_size=8, drop_last=True), DataLoader(Nothing(), batch_size=None)], ids=str
)
def test_data_without_a_batch(tmp_path: Path, data: Any) -> None:
    with pytest.raises(fb.InvalidInputError, match="yields no batch"):
        trainer_of(tmp_path / "run", train_data=data)
    assert not (tmp_path / "run").exists()


def test_looking_at_data_draws_nothing() -> None:
    class Drawing:
        def __iter__(self) -> Any:
            yield torch.rand(2, 4), torch.zeros(2, dtype=torch.long)

    state = torch.get_rng_state()
    check_data(Drawing(), None, 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_data_shorter_than_a_global_batch(tmp_path: Path) -> None:
    with pytest.raises(fb.InvalidInputError, match="grad_accumulation=5 batches and an epoch has 4"):
        trainer_of(tmp_path / "run", grad_accumulation=5)
    samples = TensorDataset(torch.randn(5, 4), torch.randint(2, (5,)))
    with pytest.raises(fb.InvalidInputError, match="that is 8 samples, and the data set has 5"):
        trainer_of(tmp_path / "run", train_data=DataLoader(samples, batch_size=8))
    assert not (tmp_path / "run").exists()


class Dropping(torch.nn.Module):
    """Draws random numbers and moves statistics in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 2)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.parts(inputs)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda outputs, batch: F.cross_entropy(outputs, batch[1], reduction="none"),
            r"scalar tensor, got shape \[8\]",
        ),
        (lambda outputs, batch: 1.0, "scalar tensor, got float"),
        (lambda outputs, batch: outputs.detach().sum(), "doesn't depend on any trainable parameter"),
    ],
)
def test_a_loss_that_can_not_be_trained_on_is_refused_before_the_first_evaluation(
    tmp_path: Path, loss: Any, message: str
) -> None:
    evaluations: list[torch.nn.Module] = []
    with pytest.raises(fb.InvalidInputError, match=message):
        trainer_of(tmp_path, loss=loss, evaluate=evaluations.append).fit()
    assert not evaluations


def test_what_could_tell_of_a_trial_is_not_tried(tmp_path: Path) -> None:
    calls: list[Any] = []

    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        calls.append(batch)
        return F.cross_entropy(outputs, batch[1])

    trainer_of(tmp_path / "loss", loss=loss).fit()
    assert len(calls) == 3
    model = torch.nn.Linear(4, 2)
    model.register_forward_hook(lambda module, inputs, outputs: calls.append(inputs))
    trainer_of(tmp_path / "hook", model=model).fit()
    assert len(calls) == 6


def test_trying_out_the_first_batch_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not in the checkpoint before the first step, from which a run must go on as if it had not been stopped."""

    def fit(name: str, *, resume: bool = False) -> list[torch.Tensor]:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(24, 4), torch.randint(2, (24,)))
        trainer = trainer_of(
            tmp_path / name, model=Dropping(), train_data=DataLoader(data, batch_size=8, shuffle=True),
            optimizer_options={"lr": 0.1}, max_steps=4, evaluate=lambda model: {"score": float(trainer.step)},
        )  # fmt: skip
        if name == "stopped" and not resume:
            monkeypatch.setattr(trainer, "_loop", lambda guard, stream: None)
        trainer.fit(resume=resume)
        return [tensor.clone() for tensor in trainer.model.state_dict().values()]

    tried = fit("tried")
    fit("stopped")
    resumed = fit("stopped", resume=True)
    monkeypatch.setattr(TrainingStep, "try_out", lambda step, batch: None)
    monkeypatch.setattr(BatchStream, "look_ahead", lambda stream: None)
    for left, *right in zip(fit("not tried"), tried, resumed, strict=True):
        assert all(torch.equal(left, other) for other in right)


def test_parameters_on_several_devices(tmp_path: Path) -> None:
    class Elsewhere(torch.nn.Linear):
        """A part that says it lies on another device; there is none here."""

        def named_buffers(self, *arguments: Any, **options: Any) -> Any:
            yield "head.mean", type("Tensor", (), {"device": torch.device("cuda", 1)})()

    with pytest.raises(fb.InvalidInputError, match=r"'weight' on cpu, 'head.mean' on cuda:1.*model.to\(device\)"):
        trainer_of(tmp_path, model=Elsewhere(4, 2))


def test_parameters_without_values(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(4, 2)
    with pytest.raises(fb.InvalidInputError, match="'weight' is on the meta device"):
        trainer_of(tmp_path, model=model)


def test_batches_that_can_not_be_moved(tmp_path: Path) -> None:
    data = [(torch.empty(8, 4, device="meta"), torch.zeros(8, dtype=torch.long))]
    with pytest.raises(fb.InvalidInputError, match=r"batch of tensors on cpu, meta can't be moved to cpu"):
        trainer_of(tmp_path, train_data=data).fit()


def test_an_optimizer_of_another_model(tmp_path: Path) -> None:
    with pytest.raises(fb.InvalidInputError, match="holds no trainable parameter of the model"):
        trainer_of(tmp_path, optimizer=torch.optim.SGD(torch.nn.Linear(4, 2).parameters(), lr=0.1))
