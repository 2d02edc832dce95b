"""Bad input is refused when the trainer is made: before the clock starts and anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import fastbudget as fb
from fastbudget.training.trainer_checks import check_data


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
    check_data(Drawing(), 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_data_shorter_than_a_global_batch(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="grad_accumulation=5 batches and an epoch has 4"):
        trainer_of(tmp_path, grad_accumulation=5)


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
