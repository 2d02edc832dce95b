"""What a run writes down: speed, spending, and what it was made with."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import fastbudget as fb
from fastbudget.training import MemmapDataset, TokenDataset, data_fingerprint
from fastbudget.training import provenance as provenance_file
from fastbudget.training import throughput as throughput_file
from fastbudget.training.throughput import Throughput, estimated_flops, peak_memory_bytes, peak_of


def train(
    run_dir: Path, data: Any, model: torch.nn.Module | None = None, *, resume: bool = False, **options: Any
) -> Any:
    settings: dict[str, Any] = {
        "model": model or torch.nn.Linear(4, 2), "train_data": data, "loss": "cross_entropy", "run_dir": run_dir,
        "budget": fb.Budget(wall_hours=1, usd=100, usd_per_device_hour=2.0), "evaluate": lambda model: {"score": 0.0},
        "metric": "score", "optimizer": "sgd", "optimizer_options": {"lr": 0.1}, "max_steps": 3,
    }  # fmt: skip
    return fb.Trainer(**{**settings, **options}).fit(resume=resume)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in path.open()]


def pairs(count: int = 3, size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(size, 4), torch.randint(2, (size,))) for _ in range(count)]


# -- speed -----------------------------------------------------------------------------------------------------------


def test_speed_is_recorded_while_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput_file, "_EVERY_S", 0.2)

    class Slow(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.02)
            return super().forward(x)

    told: list[dict[str, Any]] = []
    train(tmp_path, pairs(), Slow(4, 2), max_steps=60, evaluate_every=1000, sinks=[told.append])
    found = [record for record in lines(tmp_path / "metrics.jsonl") if "step_time_s" in record]
    assert found and [record for record in told if "step_time_s" in record] == found
    for record in found:
        assert 0.02 <= record["step_time_s"] < 0.2
        assert record["samples_per_s"] == pytest.approx(8 / record["step_time_s"])
        assert record["tokens_per_s"] is None, "these samples have no tokens"
        assert record["mfu"] is None, "a CPU's peak is unknown"
        assert record["peak_memory_bytes"] > 10 * 2**20
        assert record["spend"]["usd"] == pytest.approx(2 * record["spend"]["device_hours"])
        assert record["spend"]["kwh"] is None
    assert found[-1]["spend"]["device_hours"] < 30 / 3600


class FakeGuard:
    spent_device_hours = 0.5
    budget = fb.Budget(gpu_hours=1)


def test_model_flops_utilization_is_of_the_peak() -> None:
    """8 samples of 10 tokens a step, 1 s each, 3 FLOPs a token, on a device of 1000 FLOP/s."""
    tokens = torch.zeros(8, 10, dtype=torch.long)
    asked: list[Any] = []

    def flops_of(batch: Any) -> float:
        asked.append(batch)
        return 3.0 * tokens.numel()

    speed = Throughput(FakeGuard(), torch.device("cpu"), peak_flops_per_s=1000.0, flops_of=flops_of)  # type: ignore[arg-type]
    for _ in range(2):
        for _ in range(5):
            speed.add([{"input_ids": tokens, "labels": tokens}], 1.0)
        record = speed.record(5)
        assert record["tokens_per_s"] == pytest.approx(80) and record["samples_per_s"] == pytest.approx(8)
        assert record["mfu"] == pytest.approx(0.24)
    assert len(asked) == 1, "FLOPs are estimated once"


def test_flops_come_from_the_estimate_or_are_unknown(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Linear(16, 4, bias=False)
    batch = (torch.randn(8, 16), torch.randint(4, (8,)))
    state = torch.get_rng_state()
    flops = estimated_flops(model, torch_cross_entropy, batch, "fp32")
    assert flops == 2 * 2 * 8 * 16 * 4, "forward, and the weight's gradient"
    assert torch.equal(torch.get_rng_state(), state)

    class Untraceable(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * float(x.sum())

    with caplog.at_level(logging.INFO):
        assert estimated_flops(Untraceable(16, 4), torch_cross_entropy, batch, "fp32") is None
    assert "MFU is unknown" in caplog.text
    speed = Throughput(FakeGuard(), torch.device("cpu"), peak_flops_per_s=1.0, flops_of=lambda batch: None)  # type: ignore[arg-type]
    for _ in range(2):
        speed.add([batch], 1.0)
        assert speed.record(1)["mfu"] is None


def torch_cross_entropy(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, batch[1])


def test_no_peak_is_made_up_for_a_cpu() -> None:
    assert peak_of(torch.device("cpu"), "fp32") is None
    assert peak_memory_bytes(torch.device("cpu")) > 2**20


# -- provenance ------------------------------------------------------------------------------------------------------


def test_a_session_says_what_it_was_made_with(tmp_path: Path) -> None:
    data = DataLoader(TensorDataset(torch.randn(24, 4), torch.randint(2, (24,))), batch_size=8)
    train(tmp_path, data, seed=7)
    (session,) = lines(tmp_path / "provenance.jsonl")
    assert session["configuration"]["seed"] == 7 and session["configuration"]["budget"]["usd"] == 100
    assert session["configuration"]["optimizer_options"] == {"lr": 0.1}
    assert session["model"] == {
        "class": "torch.nn.modules.linear.Linear", "num_params": 10, "num_trainable_params": 10,
    }  # fmt: skip
    assert session["optimizer"]["class"].endswith("SGD") and session["optimizer"]["defaults"]["lr"] == 0.1
    assert session["data"]["batch_size"] == 8 and session["data"]["data"]["method"] == "content"
    assert session["packages"]["torch"] == torch.__version__ and session["packages"]["fastbudget"]
    assert session["machine"]["cpu"] and session["machine"]["device"] == "cpu" and session["python"]
    assert session["git"] is None or set(session["git"]) == {"revision", "dirty"}


def test_a_resumed_session_is_appended_and_differences_are_told(tmp_path: Path) -> None:
    data = pairs()
    train(tmp_path, data)
    train(tmp_path, data, resume=True, max_steps=6)  # to train longer needs no warning: they are errors here
    with pytest.warns(RuntimeWarning, match=r"configuration\.seed was 0 and is 3; data\.hash was '\w+' and is '\w+'"):
        train(tmp_path, [(x + 1, y) for x, y in data], resume=True, max_steps=9, seed=3)
    assert [session["configuration"]["max_steps"] for session in lines(tmp_path / "provenance.jsonl")] == [3, 6, 9]


def test_a_line_cut_off_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    data = pairs()
    train(tmp_path, data)
    with (tmp_path / "provenance.jsonl").open("a") as file:
        file.write('{"v": 1, "conf\n')
    with pytest.warns(RuntimeWarning, match="seed was 0"):
        train(tmp_path, data, resume=True, max_steps=4, seed=1)


def test_the_git_revision_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    revision = provenance_file._git_revision.__wrapped__
    assert revision(tmp_path) is None
    git("init", "-q")
    (tmp_path / "train.py").write_text("1")
    git("add", "train.py")
    git("commit", "-qm", "Train")
    assert revision(tmp_path) == {"revision": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "notes").write_text("untracked files don't count")
    assert not revision(tmp_path)["dirty"]
    (tmp_path / "train.py").write_text("2")
    assert revision(tmp_path)["dirty"]


# -- fingerprints ----------------------------------------------------------------------------------------------------


def hash_of(data: Any) -> str:
    found = data_fingerprint(data)
    while "data" in found:
        found = found["data"]
    assert found["hash"] is not None and found["method"] == "content"
    return str(found["hash"])


def test_a_fingerprint_changes_with_any_byte_and_nothing_else(tmp_path: Path) -> None:
    x, y = torch.randn(20, 4), torch.randint(2, (20,))
    changed = x.clone()
    changed[13, 2] += 1e-6
    sources = [
        lambda x: list(zip(x.split(5), y.split(5), strict=True)),
        lambda x: TensorDataset(x, y),
        lambda x: DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True),
        lambda x: DataLoader(Subset(TensorDataset(x, y), [1, 2, 3])),
        lambda x: {"x": x.to(torch.bfloat16), "y": [y.numpy()]} if x is not changed else {"x": x, "y": [y.numpy()]},
        OwnDataset,
    ]  # fmt: skip
    for source in sources:
        assert hash_of(source(x)) == hash_of(source(x.clone())) != hash_of(source(changed))
    assert (
        data_fingerprint(Subset(TensorDataset(x), [1]))["indices"]
        != data_fingerprint(Subset(TensorDataset(x), [2]))["indices"]
    )


class OwnDataset(Dataset[torch.Tensor]):
    """As users write them: the numbers lie in an attribute."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.x[index]


def test_files_are_hashed_whole_or_by_a_sample_and_it_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.bin"
    ids = np.arange(40_000, dtype=np.uint16)
    ids.tofile(path)
    tokens = TokenDataset(path, seq_len=64)
    whole = data_fingerprint(tokens)
    assert whole["method"] == "content" and whole["bytes"] == 80_000 and whole["file"] == "tokens.bin"
    assert data_fingerprint(tokens.loader(4))["data"] == whole
    assert hash_of(MemmapDataset(path, dtype="uint16", shape=8)) == whole["hash"] == hash_of(path)
    monkeypatch.setattr("fastbudget.training.fingerprints._WHOLE_BYTES", 10_000)
    monkeypatch.setattr("fastbudget.training.fingerprints._PIECE_BYTES", 16)
    sampled = data_fingerprint(tokens)
    assert sampled["method"] == "sampled"
    ids[-1] += 1
    ids.tofile(path)
    assert data_fingerprint(TokenDataset(path, seq_len=64))["hash"] != sampled["hash"], "the last byte is in the sample"
    with path.open("ab") as file:
        file.write(bytes(2))
    assert data_fingerprint(path)["hash"] != sampled["hash"]


def test_data_that_has_no_content_to_hash() -> None:
    class Streamed:
        def __iter__(self) -> Any:
            return iter(())

    assert data_fingerprint(Streamed()) == {"kind": "Streamed", "hash": None, "method": None}

    class Named(Streamed):
        def fingerprint(self) -> str:
            return "v3"

    assert data_fingerprint(Named()) == {"kind": "Named", "hash": "v3", "method": "own"}


def test_data_that_raises_does_not_stop_the_run(tmp_path: Path) -> None:
    class Odd(list):  # type: ignore[type-arg]
        def fingerprint(self) -> str:
            raise OSError("gone")

    train(tmp_path, Odd(pairs()))
    (session,) = lines(tmp_path / "provenance.jsonl")
    assert "gone" in session["data"]["error"] and session["data"]["hash"] is None


# -- evaluation ------------------------------------------------------------------------------------------------------


def test_an_evaluation_is_told_of_the_last_one(tmp_path: Path) -> None:
    class Evaluation:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def __call__(self, model: torch.nn.Module) -> dict[str, float]:
            self.calls.append("usual")
            return {"score": float("nan")}

        def at_end(self, model: torch.nn.Module) -> dict[str, float]:
            self.calls.append("last")
            return {"score": 0.5}

    evaluation = Evaluation()
    result = train(tmp_path, pairs(), evaluate=evaluation, evaluate_every=1)
    assert evaluation.calls == ["usual", "usual", "usual", "last"]
    assert result.best_step == 3 and result.best_metrics == {"score": 0.5}


def test_what_was_recorded_survives_a_killed_process(tmp_path: Path) -> None:
    """Steps are written out a few times a second, not only at saves."""
    code = f"""
import os, time, torch, fastbudget as fb
class Slow(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.01)
        return super().forward(x)
steps = 0
def sink(record):
    global steps
    steps += "loss" in record
    if steps == 100:
        os.kill(os.getpid(), 9)
fb.Trainer(model=Slow(4, 2), train_data=[(torch.randn(8, 4), torch.randint(2, (8,)))], loss="cross_entropy",
    budget=fb.Budget(wall_hours=1), run_dir={str(tmp_path)!r}, evaluate=lambda m: {{"s": 0.0}}, metric="s",
    max_steps=1000, evaluate_every=1000, sinks=[sink]).fit()
"""
    import sys

    subprocess.run([sys.executable, "-P", "-c", code], env=os.environ, timeout=100)
    steps = [record["step"] for record in lines(tmp_path / "metrics.jsonl") if "loss" in record]
    assert steps == list(range(1, len(steps) + 1)) and 50 <= len(steps) <= 100
