"""A training in stages: what each trains with, how it moves on, and that a resumed run lands in the right one."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbudget as fb
from fastbudget.budget import read_ledger
from fastbudget.checkpoint import CheckpointStore
from fastbudget.training import EarlyStopping, Stage

SHORT = Stage(name="short", targets={"score": 1.0}, mode="max", seq_len=4, micro_batch_size=8)
LONG = Stage(name="long", seq_len=16, micro_batch_size=2, grad_accumulation=3, precision="bf16-mixed")


class Embedding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(12, 8), torch.nn.Linear(8, 12)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.dropout(self.embed(tokens)))


def data_of(stage: Stage) -> Any:
    """Each stage's own loader: the same tokens in another length and batch size."""
    tokens = torch.randint(12, (40, stage.seq_len or 8), generator=torch.Generator().manual_seed(3))
    data = torch.utils.data.TensorDataset(tokens, tokens.roll(1, 1))
    return torch.utils.data.DataLoader(data, batch_size=stage.micro_batch_size or 4, shuffle=True)


class Run:
    """A trainer that notes the shape and type of what it trains on; the score is the number of evaluations / 4."""

    def __init__(self, run_dir: Path, *, stop_at: int | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.run_dir, self.shapes, self.stop_at = run_dir, [], stop_at
        self.trainer = fb.Trainer(**{
            "model": Embedding(), "train_data": data_of, "loss": self.loss, "budget": fb.Budget(wall_hours=1),
            "run_dir": run_dir, "evaluate": self.score, "metric": "score", "optimizer_options": {"lr": 0.01},
            "max_steps": 30, "evaluate_every": 4, "stages": [SHORT, LONG], "sinks": [self.stop], **options,
        })  # fmt: skip

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        self.shapes.append((*batch[0].shape, outputs.dtype))
        return torch.nn.functional.cross_entropy(outputs.flatten(0, -2).float(), batch[1].flatten())

    def score(self, model: torch.nn.Module) -> dict[str, float]:
        return {"score": self.trainer.step / 16}

    def stop(self, record: dict[str, Any]) -> None:
        if "loss" in record and record["step"] == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def fit(self, resume: bool = False) -> Any:
        return self.trainer.fit(resume=resume)

    def records(self, key: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, (self.run_dir / "metrics.jsonl").open()) if key in line]


def test_each_stage_trains_with_its_own_data_and_resources(tmp_path: Path) -> None:
    run = Run(tmp_path)
    result = run.fit()
    assert (result.stop_reason, result.steps) == ("completed", 30)
    assert run.shapes == [(8, 4, torch.float32)] * 16 + [(2, 16, torch.bfloat16)] * 14 * 3
    (moved,) = run.records("stage")
    assert moved.pop("spent_s") > 0 and moved.pop("stage_spent_share") >= 0
    assert moved == {"step": 16, "stage_ended": "short", "reason": "targets", "stage": "long", "stage_steps": 16}
    (note,) = read_ledger(tmp_path).session_records[0].notes
    assert (note["step"], note["stage_ended"], note["reason"], note["stage"]) == (16, "short", "targets", "long")


def test_each_stage_chooses_anew_what_fits_the_memory(tmp_path: Path) -> None:
    run = Run(tmp_path, micro_batch_size="auto", memory_limit_bytes=10**9)
    chosen = []
    choose = run.trainer._memory.choose

    def watched(batches: Any, ranks: Any) -> None:
        chosen.append(tuple(batches[0][0].shape))
        choose(batches, ranks)

    run.trainer._memory.choose = watched  # type: ignore[method-assign]
    assert run.fit().stop_reason == "completed"
    assert chosen == [(8, 4), (2, 16)]


def test_a_move_is_a_checkpoint_that_begins_the_next_stage(tmp_path: Path) -> None:
    stages = [Stage(name="a", max_steps=6), Stage(name="b")]
    run = Run(tmp_path, stages=stages, max_steps=7, evaluate_every=100)
    run.fit()
    store = CheckpointStore(tmp_path / "checkpoints")
    moved = store.load(store.directory / "step_000000000006")
    assert moved.metrics == {"score": 6 / 16} and moved.state["stages"]["stage"] == "b"
    assert moved.state["data"]["position"] == 0
    assert [record["step"] for record in run.records("metrics")] == [0, 6, 7]


@pytest.mark.parametrize("stop_at", [3, 15, 16, 17, 20, 29])
def test_a_resumed_run_lands_in_the_right_stage(tmp_path: Path, stop_at: int) -> None:
    alone = Run(tmp_path / "alone")
    alone.fit()
    first = Run(tmp_path / "run", stop_at=stop_at)
    assert first.fit().stop_reason == "sigterm"
    torch.manual_seed(99)
    second = Run(tmp_path / "run")
    assert second.fit(resume=True).stop_reason == "completed"
    assert first.shapes + second.shapes == alone.shapes
    assert second.records("loss") == alone.records("loss")
    assert [record["step"] for record in second.records("stage")] == [16]


def test_the_last_stage_ends_the_run_if_it_can_end(tmp_path: Path) -> None:
    stages = [Stage(name="a", max_steps=4), Stage(name="b", targets={"score": 0.5}, mode="max")]
    run = Run(tmp_path, stages=stages)
    assert (result := run.fit()).stop_reason == "target" and result.steps == 8
    again = Run(tmp_path, stages=stages)
    assert (result := again.fit(resume=True)).stop_reason == "target" and result.steps == 8
    more = Run(tmp_path, stages=[*stages, Stage(name="c", max_steps=5)])
    assert (result := more.fit(resume=True)).stop_reason == "target" and result.steps == 13


def test_patience_ends_the_run_in_any_stage(tmp_path: Path) -> None:
    stopping = EarlyStopping(mode="max", patience=1, min_delta=0.9)
    run = Run(tmp_path, early_stopping=stopping)
    assert run.fit().stop_reason == "patience"


def test_a_stage_ends_when_its_share_of_the_budget_is_spent(tmp_path: Path) -> None:
    class Slow(Embedding):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            time.sleep(0.004)
            return super().forward(tokens)

    stages = [
        Stage(name="a", budget_share=0.5, targets={"score": 1e9}, mode="max"), Stage(name="b", budget_share=0.1),
        Stage(name="c"),
    ]  # fmt: skip

    def slowly(model: torch.nn.Module) -> dict[str, float]:
        time.sleep(0.15)  # the reserve is a multiple of this, so a stall of the machine fits in it
        return {"score": 0.0}

    budget = fb.Budget(wall_hours=4 / 3600)
    run = Run(
        tmp_path, model=Slow(), stages=stages, max_steps=None, evaluate_every=10**6, budget=budget, evaluate=slowly
    )
    result = run.fit()
    assert result.stop_reason == "budget"
    first, second = run.records("stage")
    assert (first["reason"], first["stage"], second["reason"], second["stage"]) == ("budget_share", "b") * 1 + (
        "budget_share", "c",
    )  # fmt: skip
    assert 0.5 <= first["stage_spent_share"] < 0.65 and 0.1 <= second["stage_spent_share"] < 0.25


def test_a_stage_that_wants_other_devices_saves_and_ends(tmp_path: Path) -> None:
    stages = [
        Stage(name="one", max_steps=5),
        Stage(name="two", devices=2, max_steps=5),
        Stage(name="one again", devices=1),
    ]
    first = Run(tmp_path, stages=stages, max_steps=12)
    result = first.fit()
    assert (result.stop_reason, result.steps, result.wanted_ranks) == ("devices", 5, 2)
    assert result.last_checkpoint.name == "step_000000000005"
    same = Run(tmp_path, stages=stages, max_steps=12)
    assert same.fit(resume=True).wanted_ranks == 2 and not same.shapes, "as long as it has not got them"
    assert read_ledger(tmp_path).last_reason == "devices"
    second = Run(tmp_path, stages=stages, max_steps=12, num_devices=2)
    result = second.fit(resume=True)
    assert (result.stop_reason, result.steps, result.wanted_ranks) == ("devices", 10, 1)
    result = Run(tmp_path, stages=stages, max_steps=12).fit(resume=True)
    assert (result.stop_reason, result.steps, result.wanted_ranks) == ("completed", 12, None)
    assert [session.devices for session in read_ledger(tmp_path).session_records] == [1, 1, 2, 1]
    assert "restart_loss" not in read_ledger(tmp_path).billed_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_data": [1]}, "Stage 'short' sets micro_batch_size, so train_data must be a function"),
        ({"stages": ()}, "train_data is a function"),
        ({"max_epochs": 2}, "epochs can't be counted"),
        ({"stages": [SHORT, SHORT]}, "used twice"),
    ],
    ids=str,
)
def test_what_is_refused_before_anything_runs(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        Run(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_stage_data_that_is_none_or_can_be_read_only_once(tmp_path: Path) -> None:
    with pytest.raises(fb.InvalidInputError, match="must return the batches of stage 'short', got a NoneType"):
        Run(tmp_path / "none", train_data=lambda stage: None).fit()
    with pytest.raises(fb.InvalidInputError, match=r"train_data\(stage 'short'\)"):
        Run(tmp_path, train_data=lambda stage: iter([1])).fit()
