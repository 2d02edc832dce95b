"""Stages that change the number of ranks: two processes over gloo, started anew by the launcher between stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fastbudget.budget import read_ledger
from fastbudget.checkpoint import CheckpointStore
from fastbudget.workflow import TrainOptions, train

PROGRAM = """
import os
import torch
import fastbudget as fb
from fastbudget.training import LearningRateSchedule, Stage

def data_of(stage):
    inputs = torch.randn(48, stage.seq_len, generator=torch.Generator().manual_seed(2))
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    return torch.utils.data.DataLoader(data, batch_size=stage.micro_batch_size, shuffle=True)

class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 2)

    def forward(self, x):
        return self.layer(x.mean(1, keepdim=True))

def make(run_dir="run", devices=(1, 2)):
    torch.manual_seed(0)
    sizes = zip(devices, (4, 8), (8, 4), (5, None))
    return fb.Trainer(
        model=Mean(), train_data=data_of, loss="cross_entropy", budget=fb.Budget(wall_hours=1), run_dir=run_dir,
        evaluate=lambda model: {"weight": float(model.layer.weight.sum())}, metric="weight",
        optimizer_options={"lr": 0.05}, evaluate_every=4, max_steps=12,
        schedule=LearningRateSchedule(shape="wsd", cool_down_share=0.4),
        stages=[
            Stage(name=f"stage {i}", devices=count, seq_len=length, micro_batch_size=size, max_steps=steps)
            for i, (count, length, size, steps) in enumerate(sizes)
        ],
    )
"""


def losses(run_dir: Path) -> list[tuple[int, float, float]]:
    records = map(json.loads, (run_dir / "metrics.jsonl").open())
    return [(record["step"], record["lr"], record["loss"]) for record in records if "loss" in record]


def test_each_stage_gets_its_ranks_and_the_training_is_that_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "staged.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found: dict[str, Any] = train("staged:make", TrainOptions(num_ranks=1))
    assert (found["stop_reason"], found["steps"], found["ranks"]) == ("completed", 12, 2)
    ledger = read_ledger(tmp_path / "run")
    assert [(session.devices, session.reason) for session in ledger.session_records] == [
        (1, "devices"), (2, "completed"),
    ]  # fmt: skip
    moves = [note for session in ledger.session_records for note in session.notes]
    assert [(move["step"], move["stage"], move["reason"]) for move in moves] == [
        (5, "stage 1", "max_steps"),
    ]  # fmt: skip
    assert "restart_loss" not in ledger.billed_s
    # The trunk ends where the cool-down begins, in the middle of the two ranks' stage.
    assert (tmp_path / "run" / "trunk" / "step_000000000008").exists()

    program: dict[str, Any] = {}
    exec(PROGRAM, program)
    program["make"](tmp_path / "alone", devices=(None, None)).fit()
    assert len(losses(tmp_path / "run")) == 12
    for one, several in zip(losses(tmp_path / "alone"), losses(tmp_path / "run"), strict=True):
        assert one == pytest.approx(several, rel=1e-5)
    for name, value in CheckpointStore(tmp_path / "alone" / "checkpoints").load().state["model"].items():
        other = CheckpointStore(tmp_path / "run" / "checkpoints").load().state["model"][name]
        torch.testing.assert_close(other, value, rtol=1e-6, atol=1e-6)


BUDGETED = """
import os
import time
import torch
import fastbudget as fb
from fastbudget.training import LearningRateSchedule

def make():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    rates = open(f"rates_{os.environ['RANK']}", "w")

    def loss(outputs, batch):
        time.sleep(0.01 if time.time() - began < 2 else 0.03)
        print(trainer.optimizer.param_groups[0]["lr"], file=rates, flush=True)
        return torch.nn.functional.cross_entropy(outputs, batch[1])

    began = time.time()
    trainer = fb.Trainer(
        model=model, train_data=[(torch.randn(8, 4), torch.randint(2, (8,)))], loss=loss,
        budget=fb.Budget(wall_hours=6 / 3600), run_dir="run", evaluate=lambda model: time.sleep(0.3) or {"score": 1.0},
        metric="score",
        optimizer_options={"lr": 1.0}, evaluate_every=10**6, schedule=LearningRateSchedule(shape="wsd"),
    )
    return trainer
"""


def test_all_ranks_cool_down_alike_when_a_budget_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "budgeted.py").write_text(BUDGETED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert train("budgeted:make", TrainOptions(num_ranks=2))["stop_reason"] == "budget"
    first, second = ((tmp_path / f"rates_{rank}").read_text().split() for rank in (0, 1))
    assert first == second and float(first[0]) == 1.0 and float(first[-1]) < 0.5
