"""Failures that users of other libraries reported."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore, DamagedCheckpointWarning
from fastbudget.checkpoint import writing as module

CASES = json.loads((Path(__file__).parent / "cases" / "public_reports.json").read_text())["cases"]


def state_of(step: int) -> dict[str, Any]:
    return {"model": {"w": torch.full((100,), float(step))}, "optimizer": {"m": torch.ones(100)}, "step": step}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_reported_directory(case: dict[str, Any], tmp_path: Path) -> None:
    expected = case["expected"]
    store = CheckpointStore(tmp_path, **case.get("options", {}))
    for step in case["saved_steps"]:
        losses = case.get("losses")
        store.save(step, state_of(step), {"loss": losses[str(step)]} if losses else None)
    for name in case.get("removed", ()):
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    store = CheckpointStore(tmp_path, **case.get("options", {}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = store.load(require=("model", "optimizer", "step"))
    assert loaded.step == expected["loaded_step"] == loaded.state["model"]["w"][0]
    assert [warning.category for warning in caught] == [DamagedCheckpointWarning] * ("warning" in expected)
    assert all(expected["warning"] in str(warning.message) for warning in caught)
    if "kept_steps" in expected:
        assert [int(path.name[5:]) for path in store.paths()] == expected["kept_steps"]
    if "best_step" in expected:
        best = store.best()
        assert best is not None and store.describe(best)[0] == expected["best_step"]


def test_all_deleted_by_somebody_is_no_crash(tmp_path: Path) -> None:
    """https://github.com/huggingface/transformers/issues/48315, taken to its end."""
    store = CheckpointStore(tmp_path / "store", metric="loss")
    store.save(1, state_of(1), {"loss": 1.0})
    shutil.rmtree(tmp_path / "store")
    assert store.best() is None and store.latest() is None and store.paths() == []
    with pytest.raises(fb.CheckpointError, match="no usable checkpoint"):
        store.load()


def test_the_old_one_is_there_until_the_new_one_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/Lightning-AI/pytorch-lightning/issues/1150: deleted first, then killed before saving."""
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=0)
    store.save(1, state_of(1))
    events: list[str] = []
    for name in ("rename", "unlink", "rmdir"):
        original = getattr(os, name)

        def watched(*args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            events.append(f"{_name} {Path(os.fspath(args[0])).name.split('.')[-1]}")
            return _original(*args, **kwargs)

        monkeypatch.setattr(os, name, watched)
    sync = module.sync_directory
    monkeypatch.setattr(module, "sync_directory", lambda path: (events.append("sync"), sync(path)))
    store.save(2, state_of(2))
    deleting = events.index("rename step_000000000001")
    assert events[:deleting] == ["rename partial", "sync"], events
    assert {event.split()[0] for event in events[deleting:]} == {"rename", "unlink", "rmdir"}


def test_an_unwritable_path_fails_loudly() -> None:
    """https://github.com/Lightning-AI/pytorch-lightning/issues/21800: training went on without saving anything."""
    with pytest.raises(fb.SaveError, match="can't be made"):
        CheckpointStore("/proc/version/checkpoints")


def test_parameters_updated_after_an_asynchronous_save(tmp_path: Path) -> None:
    """https://github.com/pytorch/pytorch/issues/144657: the new values were written."""
    model = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    store = CheckpointStore(tmp_path, keep_last=10)
    expected = {}
    for step in range(4):
        expected[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        store.save_async(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        model(torch.ones(1, 1000)).sum().backward()
        optimizer.step()
    store.wait()
    for path in store.paths():
        checkpoint = store.load(path)
        for name, tensor in expected[checkpoint.step].items():
            assert torch.equal(checkpoint.state["model"][name], tensor)
