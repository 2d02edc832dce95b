"""Real training processes, killed without warning and resumed, end as the one that was left alone."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import fastbudget as fb
from fastbudget.budget import read_ledger
from fastbudget.checkpoint import CheckpointStore

STEPS = 60


def train(run_dir: Path, *, resume: bool, pause_s: float = 0.0) -> fb.TrainingResult:
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
    inputs = torch.randn(30, 5, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        losses = [float(torch.nn.functional.cross_entropy(model(x), y)) for x, y in DataLoader(data, batch_size=30)]
        return {"loss": sum(losses)}

    def slow(record: dict[str, Any]) -> None:
        time.sleep(pause_s)

    trainer = fb.Trainer(
        model=model, train_data=DataLoader(data, batch_size=8, shuffle=True), budget=fb.Budget(wall_hours=1),
        run_dir=run_dir, evaluate=evaluate, metric="loss", mode="min", loss="cross_entropy", max_steps=STEPS,
        evaluate_every=4, sinks=[slow],
    )  # fmt: skip
    return trainer.fit(resume=resume)


def final_weights(run_dir: Path) -> dict[str, torch.Tensor]:
    checkpoint = CheckpointStore(run_dir / "checkpoints").load()
    assert checkpoint.step == STEPS
    return checkpoint.state["model"]


def test_sigkill_and_resume_until_done(tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    train(alone, resume=False)
    generator = random.Random(0)
    lived_s, kills = 0.0, 0
    for _ in range(30):
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                resume = killed.exists() and bool(CheckpointStore(killed / "checkpoints").paths())
                train(killed, resume=resume, pause_s=0.02)
                code = 0
            finally:
                os._exit(code)
        if kills < 8:
            time.sleep(generator.uniform(0.02, 0.35))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        lived_s += time.monotonic() - begin
        ended = os.waitstatus_to_exitcode(status)
        assert ended in (0, -signal.SIGKILL), "a session failed by itself"
        if ended == 0:
            break
        kills += 1
    assert kills >= 3, "no session was killed: the test proves nothing"
    expected, weights = final_weights(alone), final_weights(killed)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    record = read_ledger(killed)
    assert record.closed and record.last_reason == "completed" and record.damaged_lines <= kills
    assert "restart_loss" in record.billed_s
    # Lost work is billed: never less than was really spent, short of each session's start before its clock began.
    assert record.total_billed_s >= 0.5 * lived_s
