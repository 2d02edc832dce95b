"""The trainer against the loop a user would write by hand: the same numbers, to the last bit."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fastbudget as fb
from fastbudget.training import LearningRateSchedule


def model_with_dropout() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    )


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(count, 8, 16, generator=generator)
    return list(zip(inputs, torch.randint(4, (count, 8), generator=generator), strict=True))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("evaluate_every", [None, 7])
def test_the_loss_curve_and_the_weights_are_those_of_a_bare_loop(
    tmp_path: Path, optimizer: type[torch.optim.Optimizer], clip: float | None, evaluate_every: int | None
) -> None:
    data, by_hand = batches(40), model_with_dropout()
    model = copy.deepcopy(by_hand)

    torch.manual_seed(0)
    steps = optimizer(by_hand.parameters(), lr=0.05)
    losses = []
    for inputs, targets in data:
        loss = F.cross_entropy(by_hand(inputs), targets)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(by_hand.parameters(), clip)
        steps.step()
        steps.zero_grad()
        losses.append(loss.item())

    ends: list[dict[str, torch.Tensor]] = []

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        torch.rand(3)  # draws of an evaluation don't change training
        ends.append(copy.deepcopy(model.state_dict()))
        return {"score": float(len(ends))}

    fb.Trainer(
        model=model, optimizer=optimizer(model.parameters(), lr=0.05), loss="cross_entropy", train_data=data,
        budget=fb.Budget(wall_hours=1), run_dir=tmp_path, evaluate=evaluate, metric="score", max_steps=40, seed=0,
        schedule=LearningRateSchedule(shape="constant"), clip_grad_norm=clip, evaluate_every=evaluate_every,
    ).fit()  # fmt: skip
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").open()]
    assert [record["loss"] for record in records if "loss" in record] == losses
    assert all(torch.equal(ends[-1][name], value) for name, value in by_hand.state_dict().items())


def test_batches_of_every_shape_reach_the_model_as_they_are(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor, extra: Any = None) -> torch.Tensor:
            seen.append((x, extra))
            return (x * self.weight).sum()

    x = torch.ones(2, 3)
    for number, batch in enumerate([x, {"x": x, "extra": "text"}, ((x, 7), torch.zeros(2)), [x, torch.zeros(2)]]):
        seen.clear()
        fb.Trainer(
            model=Model(), train_data=[batch], budget=fb.Budget(wall_hours=1), run_dir=tmp_path / str(number),
            evaluate=lambda model: {"score": 0.0}, metric="score", max_steps=1, optimizer="sgd",
            optimizer_options={"lr": 0.1},
        ).fit()  # fmt: skip
        assert len(seen) == 1 and seen[0][0] is x, "nothing is copied where nothing need be moved"
        assert seen[0][1] == [None, "text", 7, None][number]
