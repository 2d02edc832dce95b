"""One trunk, several budgets: a longer run that goes on from a shorter one's trunk is the longer run, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore
from fastbudget.training import LearningRateSchedule
from fastbudget.training.trunk import COOLED_DOWN_DIR, TRUNK_DIR, return_to_trunk

WSD = LearningRateSchedule(shape="wsd", warmup_steps=3)
DATA = [(torch.randn(8, 4, generator=torch.Generator().manual_seed(i)), torch.tensor([i % 2] * 8)) for i in range(7)]


def trainer(run_dir: Path, **options: Any) -> fb.Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))

    def score(model: torch.nn.Module) -> dict[str, float]:
        return {"score": -float(sum(torch.nn.functional.cross_entropy(model(x), y) for x, y in DATA))}

    return fb.Trainer(**{
        "model": model, "train_data": DATA, "loss": "cross_entropy", "budget": fb.Budget(wall_hours=1),
        "run_dir": run_dir, "evaluate": score, "metric": "score", "optimizer_options": {"lr": 0.01},
        "schedule": WSD, "evaluate_every": 6, **options,
    })  # fmt: skip


def steps_of(run_dir: Path) -> list[dict[str, Any]]:
    return [record for record in map(json.loads, (run_dir / "metrics.jsonl").open()) if "loss" in record]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool((a == b) is True or (a == b).all())


def test_a_longer_run_from_the_trunk_of_a_shorter_one(tmp_path: Path) -> None:
    alone = trainer(tmp_path / "alone", max_steps=40).fit()
    short = trainer(tmp_path / "run", max_steps=20).fit()
    annealed = CheckpointStore(short.last_checkpoint.parent).load().state["model"]
    assert [path.name for path in (tmp_path / "run" / TRUNK_DIR).iterdir()] == ["step_000000000017"]
    longer = trainer(tmp_path / "run", max_steps=40).fit(resume="trunk")
    assert (longer.stop_reason, longer.steps) == ("completed", 40)
    states = [CheckpointStore(result.last_checkpoint.parent).load().state for result in (alone, longer)]
    for part in ("model", "optimizer", "data", "random"):
        assert same(states[0][part], states[1][part]), part
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "alone")
    # The model of the smaller budget is still there, with its history.
    kept = tmp_path / "run" / COOLED_DOWN_DIR / "step_000000000020"
    assert same(CheckpointStore(kept).load().state["model"], annealed)
    assert [record["step"] for record in steps_of(kept)] == list(range(1, 21))
    # To the same end once more: both annealed models are kept.
    assert trainer(tmp_path / "run", max_steps=40).fit(resume="trunk").steps == 40
    assert trainer(tmp_path / "run", max_steps=40).fit(resume="trunk").steps == 40
    names = {path.name for path in (tmp_path / "run" / COOLED_DOWN_DIR).iterdir()}
    assert names == {"step_000000000020", "step_000000000040", "step_000000000040_2"}
    # And further, from the new trunk.
    assert trainer(tmp_path / "run", max_steps=50).fit(resume="trunk").steps == 50
    assert [record["step"] for record in steps_of(tmp_path / "run")] == list(range(1, 51))


def test_a_return_to_the_trunk_that_is_cut_short_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer(tmp_path, max_steps=20, checkpoint_every=1).fit()
    moves = []

    def dies(source: Path, target: Path) -> Path:
        moves.append(source)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", dies)
        return_to_trunk(tmp_path)
    assert moves
    assert CheckpointStore(tmp_path / "checkpoints").load().step == 20, "nothing is lost"
    return_to_trunk(tmp_path)
    assert CheckpointStore(tmp_path / "checkpoints").load().step == 17
    return_to_trunk(tmp_path)
    result = trainer(tmp_path, max_steps=30, checkpoint_every=1).fit(resume=True)
    assert result.steps == 30 and result.last_checkpoint.name.endswith("30")


def test_stopped_while_cooling_down_a_run_goes_on_cooling_down(tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 18 and "loss" in record:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer(tmp_path / "alone", max_steps=20).fit()
    assert trainer(tmp_path / "run", max_steps=20, sinks=[stop]).fit().stop_reason == "sigterm"
    assert trainer(tmp_path / "run", max_steps=20).fit(resume=True).steps == 20
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "alone")


def test_another_end_without_the_trunk_raises_the_rate_again_and_warns(tmp_path: Path) -> None:
    trainer(tmp_path, max_steps=20).fit()
    with pytest.warns(RuntimeWarning, match="resume='trunk' goes on from the state before the fall"):
        trainer(tmp_path, max_steps=40).fit(resume=True)
    rates = [record["lr"] for record in steps_of(tmp_path)]
    assert rates[19] < 0.002 and rates[20:33] == [0.01] * 13 and rates[-1] < 0.001


def test_without_a_trunk(tmp_path: Path) -> None:
    with pytest.raises(fb.RunDirectoryError, match="has no trunk"):
        trainer(tmp_path / "none").fit(resume="trunk")
    for shape in ("linear", "cosine", "constant"):
        run_dir = tmp_path / shape
        trainer(run_dir, max_steps=8, schedule=LearningRateSchedule(shape=shape)).fit()  # type: ignore[arg-type]
        assert not (run_dir / TRUNK_DIR).exists()
        with pytest.raises(fb.RunDirectoryError, match="shape='wsd'"):
            trainer(run_dir, max_steps=9).fit(resume="trunk")
    with pytest.raises(fb.InvalidInputError, match="resume must be"):
        trainer(tmp_path / "none").fit(resume="yes")  # type: ignore[arg-type]


@pytest.fixture
def fast_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory where a save takes no share of a budget of seconds."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else tmp_path) as directory:
        yield Path(directory)


def test_a_budget_that_is_raised_goes_on_from_the_trunk(fast_disk: Path) -> None:
    """On the machine's clock, with nothing but a budget to end the run: both runs end annealed."""

    class Slow(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.005)
            return super().forward(x)

    def slowly(model: torch.nn.Module) -> dict[str, float]:
        time.sleep(0.25)  # the reserve is a multiple of this, so a stall of the machine fits in it
        return {"score": 1.0}

    def run(seconds: float, resume: Any) -> list[float]:
        budget = fb.Budget(wall_hours=seconds / 3600)
        options = {"budget": budget, "evaluate_every": 10**6, "model": Slow(4, 2), "evaluate": slowly}
        result = trainer(fast_disk, schedule=LearningRateSchedule(shape="wsd"), **options).fit(resume=resume)
        assert result.stop_reason == "budget"
        return [record["lr"] / 0.01 for record in steps_of(fast_disk)]

    first = run(3.0, False)
    assert first[0] == 1 and first[-1] < 0.3 and first == sorted(first, reverse=True)
    trunk = sum(rate == 1 for rate in first)
    second = run(7.0, "trunk")
    assert second[: trunk + 1] == [1.0] * (trunk + 1) and second[-1] < 0.3 and second == sorted(second, reverse=True)
