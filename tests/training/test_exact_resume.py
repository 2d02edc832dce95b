"""A run that stops at any step and goes on in new objects is the uninterrupted run, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore
from fastbudget.training import EarlyStopping, ResumableSampler, SeededDataset, TokenDataset, make_loader

STEPS = 16  # 50 samples in batches of 8: seven an epoch; evaluations at 5, 10 and 15


class Noisy(Dataset[Any]):
    """Augments with the generators of torch, NumPy and Python."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        inputs = torch.full((6,), index / 50) + 0.1 * torch.randn(6) + np.random.normal() * 0.01 + random.gauss(0, 0.01)
        return inputs, torch.tensor(index % 2)


def resumable(**options: Any) -> Any:
    return DataLoader(SeededDataset(Noisy()), batch_sampler=ResumableSampler(50, batch_size=8, seed=3), **options)


def tokens(path: Path) -> TokenDataset:
    if not path.exists():
        np.random.default_rng(0).integers(0, 12, 1001).astype(np.uint16).tofile(path)
    return TokenDataset(path, seq_len=10, seed=4)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "plain": lambda _: DataLoader(Noisy(), batch_size=8, shuffle=True),
    "plain, 1 worker": lambda _: DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=1),
    "plain, 2 workers": lambda _: DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2),
    "own generator": lambda _: DataLoader(
        Noisy(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(random.randrange(2**31))
    ),
    "resumable": lambda _: resumable(),
    "resumable, 1 worker": lambda _: resumable(num_workers=1),
    "resumable, 2 workers that stay": lambda _: resumable(num_workers=2, persistent_workers=True),
    "plain, 1 worker that stays": lambda _: DataLoader(
        TensorDataset(torch.linspace(0, 1, 300).reshape(50, 6), torch.arange(50) % 2),
        batch_size=8,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
    ),
    "resumable, unseeded": lambda _: DataLoader(Noisy(), batch_sampler=ResumableSampler(50, batch_size=8)),
    "resumable, unseeded, 2 workers": lambda _: DataLoader(
        Noisy(), batch_sampler=ResumableSampler(50, batch_size=8), num_workers=2
    ),
    "resumable single samples": lambda _: DataLoader(Noisy(), sampler=ResumableSampler(50), batch_size=8),
    "measured": lambda _: make_loader(Noisy(), 8, num_workers=0, lengths=[index % 9 for index in range(50)]),
    "token batches": lambda path: tokens(path).batches(8),
    "token loader": lambda path: tokens(path).loader(8),
}


class TokenModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(12, 8), torch.nn.Linear(8, 12)
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.dropout(self.embed(tokens)))


def train(run_dir: Path, kind: str, *, stop_at: int | None = None, resume: bool = False, **options: Any) -> Any:
    """One session of a run in new objects; return its result and the batches it trained on."""
    torch.manual_seed(11)
    model: torch.nn.Module = TokenModel() if kind.startswith("token") else torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
    )  # fmt: skip
    if resume:  # the process that goes on starts with other random states and other weights
        random.seed(99), np.random.seed(99), torch.manual_seed(99)
        torch.nn.init.normal_(next(model.parameters()))
    else:
        random.seed(1), np.random.seed(1)
    batches: list[Any] = []

    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        batches.append([part.clone() for part in batch])
        return torch.nn.functional.cross_entropy(outputs.flatten(0, -2), batch[1].flatten())

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        for _ in DataLoader(range(3), shuffle=True):
            np.random.normal(), random.random()
        return {"score": float(sum(parameter.sum() for parameter in model.parameters()))}

    def stop(record: dict[str, Any]) -> None:
        if "loss" in record and record["step"] == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    result = fb.Trainer(**{
        "model": model, "train_data": LOADERS[kind](run_dir.parent / "tokens.bin"), "budget": fb.Budget(wall_hours=10),
        "run_dir": run_dir, "evaluate": evaluate, "metric": "score", "loss": loss, "optimizer_options": {"lr": 0.01},
        "max_steps": STEPS, "evaluate_every": 5, "clip_grad_norm": 1.0, "sinks": [stop],
        "early_stopping": EarlyStopping(mode="max", patience=99), **options,
    }).fit(resume=resume)  # fmt: skip
    assert result.steps == (stop_at or STEPS)
    return result, batches


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


def last_state(result: Any) -> dict[str, Any]:
    return CheckpointStore(result.last_checkpoint.parent).load(result.last_checkpoint).state


def losses(run_dir: Path) -> list[Any]:
    records = map(json.loads, (run_dir / "metrics.jsonl").open())
    return [(record["step"], record["loss"], record["grad_norm"]) for record in records if "loss" in record]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    runs: dict[Any, Any] = {}

    def run(kind: str, **options: Any) -> Any:
        key = (kind, *options.items())
        if key not in runs:
            directory = tmp_path_factory.mktemp("alone") / "run"
            result, batches = train(directory, kind, **options)
            runs[key] = last_state(result), batches, losses(directory)
        return runs[key]

    return run


STOPS = [(kind, stop) for kind in LOADERS for stop in ((3, 7, 9) if "worker" not in kind else (9,))]


@pytest.mark.parametrize(
    ("kind", "stop", "options"),
    [(kind, stop, {}) for kind, stop in STOPS]
    + [(kind, 7, {}) for kind in LOADERS if "stay" in kind]
    + [("resumable", stop, {}) for stop in (1, 5, 8, 13, 14, 15)]
    + [("resumable", 4, {"grad_accumulation": 3}), ("token batches", 8, {"precision": "fp16-mixed"})],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Persistent workers")
def test_stop_and_resume(
    tmp_path: Path, uninterrupted: Callable[..., Any], kind: str, stop: int, options: dict[str, Any]
) -> None:
    """Inside an epoch too, where transformers differs (huggingface/transformers #46628)."""
    state, batches, history = uninterrupted(kind, **options)
    run_dir = tmp_path / "run"
    first, before = train(run_dir, kind, stop_at=stop, **options)
    assert first.stop_reason == "sigterm"
    second, after = train(run_dir, kind, resume=True, **options)
    assert second.stop_reason == "completed"
    assert_same(before + after, batches, "batches")
    # Every part: weights, optimizer, position, generators, loss scale. The extra evaluation after a stop doesn't count.
    assert_same(last_state(second), state, "state")
    assert losses(run_dir) == history


def test_a_run_stopped_again_and_again(tmp_path: Path, uninterrupted: Callable[..., Any]) -> None:
    state, batches, history = uninterrupted("resumable")
    seen: list[Any] = []
    for stop in (2, 7, 8, 12):
        seen += train(tmp_path / "run", "resumable", stop_at=stop, resume=stop > 2)[1]
    result, rest = train(tmp_path / "run", "resumable", resume=True)
    assert_same(seen + rest, batches)
    assert_same(last_state(result), state)
    assert losses(tmp_path / "run") == history


def test_history_after_a_kill_has_each_step_once(tmp_path: Path, uninterrupted: Callable[..., Any]) -> None:
    """What was recorded after the last checkpoint is taken again; a half-written line goes."""
    run_dir = tmp_path / "run"
    train(run_dir, "plain", max_steps=STEPS, stop_at=7)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lr": 0.1, "loss": 0.5, "grad_norm": 1.0}\n{"step": 9, "lo')
    train(run_dir, "plain", resume=True)
    assert losses(run_dir) == uninterrupted("plain")[2]


@pytest.mark.parametrize(
    "part", ["model", "optimizer", "base_rates", "step", "data", "random", "loss_scale", "early_stopping"]
)
def test_a_missing_part_is_never_passed_over(tmp_path: Path, part: str) -> None:
    """transformers goes on with a new optimizer, silently, when optimizer.pt is missing."""
    run_dir = tmp_path / "run"
    result, _ = train(run_dir, "plain", stop_at=3)
    store = CheckpointStore(run_dir / "checkpoints")
    state = store.load(result.last_checkpoint).state
    del state[part]
    store.save(4, state)
    with pytest.raises(fb.InvalidInputError, match=rf"step_000000000004 lacks {part}"):
        train(run_dir, "plain", resume=True)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("data", "position"), "lacks position"), (("random", "numpy"), "lacks random.numpy"),
        (("optimizer", "param_groups"), "doesn't fit"), (("model", "0.weight"), "doesn't fit"),
    ],
    ids=str,
)  # fmt: skip
def test_a_part_of_a_part_neither(tmp_path: Path, path: tuple[str, str], message: str) -> None:
    run_dir = tmp_path / "run"
    result, _ = train(run_dir, "plain", stop_at=3)
    store = CheckpointStore(run_dir / "checkpoints")
    state = store.load(result.last_checkpoint).state
    del state[path[0]][path[1]]
    store.save(4, state)
    with pytest.raises(fb.InvalidInputError, match=message):
        train(run_dir, "plain", resume=True)


def test_other_data_is_refused(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(run_dir, "resumable", stop_at=3)
    for kind, message in [
        ("plain", "keeps its position in another way"),
        ("token loader", "doesn't fit the model"),
        ("measured", "seed"),
    ]:
        with pytest.raises(fb.InvalidInputError, match=message):
            train(run_dir, kind, resume=True)


def test_fewer_batches_than_were_taken(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(run_dir, "plain", stop_at=6)
    with pytest.raises(fb.InvalidInputError, match="yields 2 batches an epoch, and 6 were taken"):
        train(run_dir, "plain", resume=True, train_data=DataLoader(Noisy(), batch_size=25, shuffle=True))


def test_workers_that_stay_are_warned_about(tmp_path: Path) -> None:
    def loader() -> Any:
        return DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)

    train(tmp_path / "run", "plain", stop_at=9, train_data=loader())
    with pytest.warns(RuntimeWarning, match="Persistent workers"):  # they may augment
        train(tmp_path / "run", "plain", resume=True, train_data=loader())


def test_entering_far_into_an_epoch_draws_no_batch_again(tmp_path: Path) -> None:
    drawn: list[int] = []

    class Counted(Noisy):
        def __getitem__(self, index: int) -> Any:
            drawn.append(index)
            return super().__getitem__(index)

    def loader() -> Any:
        return DataLoader(SeededDataset(Counted()), batch_sampler=ResumableSampler(50, batch_size=8))

    train(tmp_path / "run", "plain", stop_at=6, train_data=loader())
    drawn.clear()
    train(tmp_path / "run", "plain", resume=True, train_data=loader(), max_steps=7, stop_at=7)
    assert len(drawn) <= 2, "only the epoch's last batch of two samples"
