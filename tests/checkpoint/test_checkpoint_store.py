"""What is kept, what is found, and what damage does."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore, DamagedCheckpointWarning
from fastbudget.checkpoint import checkpoint_store as module


def state_of(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {"weight": torch.randn(40, 10, generator=generator), "step": step, "nested": {"x": [1.5, None]}}


def filled(directory: Path, steps: range | list[int], **options: Any) -> CheckpointStore:
    store = CheckpointStore(directory / "store", **{"keep_last": 100, **options})
    for step in steps:
        store.save(step, state_of(step), {"loss": 1 / (1 + step)})
    return store


def steps_in(store: CheckpointStore) -> list[int]:
    return [int(path.name.removeprefix("step_")) for path in store.paths()]


def assert_loads(store: CheckpointStore, step: int) -> None:
    checkpoint = store.load()
    assert checkpoint.step == step == checkpoint.state["step"]
    assert torch.equal(checkpoint.state["weight"], state_of(step)["weight"])
    assert checkpoint.state["nested"] == {"x": [1.5, None]}


# -- keeping -------------------------------------------------------------------------------------------------------


def test_a_saved_state_is_found(tmp_path: Path) -> None:
    store = filled(tmp_path, [3])
    path = store.latest()
    assert path is not None and path.name == "step_000000000003" and store.verify(path) is None
    assert_loads(store, 3)
    assert store.load(path).metrics == {"loss": 0.25}
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "tensors.safetensors"]


@pytest.mark.parametrize(("keep_last", "expected"), [(1, [5]), (2, [4, 5]), (10, [0, 1, 2, 3, 4, 5])])
def test_the_newest_are_kept(tmp_path: Path, keep_last: int, expected: list[int]) -> None:
    store = filled(tmp_path, range(6), keep_last=keep_last, keep_best=0)
    assert steps_in(store) == expected
    assert_loads(store, 5)


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 4)])
def test_the_best_is_kept_however_old(tmp_path: Path, mode: Any, best: int) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=1, metric="score", mode=mode)
    for step, score in enumerate([0.5, 0.6, 0.9, 0.7, 0.1, float("nan"), 0.8, 0.4]):
        store.save(step, state_of(step), {"score": score, "other": 3})
    store.save(8, state_of(8))  # without the metric: never the best
    assert steps_in(store) == [best, 8]
    path = store.best()
    assert path is not None and store.load(path).step == best
    assert store.load().step == 8


def test_equal_metrics_prefer_the_newer_and_keep_best_counts(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=2, metric="score")
    for step, score in enumerate([0.9, 0.9, 0.9, 0.2, 0.1]):
        store.save(step, state_of(step), {"score": score})
    assert steps_in(store) == [1, 2, 4]
    best = store.best()
    assert best is not None and store.load(best).step == 2


def test_best_without_a_metric(tmp_path: Path) -> None:
    with pytest.raises(fb.InvalidInputError, match="metric="):
        filled(tmp_path, [1]).best()
    assert CheckpointStore(tmp_path / "store", metric="absent").best() is None
    assert CheckpointStore(tmp_path / "empty", metric="absent").latest() is None
    with pytest.raises(fb.RunDirectoryError, match="no usable checkpoint"):
        CheckpointStore(tmp_path / "empty").load()


@pytest.mark.parametrize(
    "options", [{"keep_last": 0}, {"keep_last": -1}, {"keep_best": -1}, {"mode": "largest"}], ids=str
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(fb.InvalidInputError, match=next(iter(options))):
        CheckpointStore(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_a_good_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    store = filled(tmp_path, [1])
    with pytest.raises(fb.RunDirectoryError, match="saved before"):
        store.save(1, state_of(2))
    assert_loads(store, 1)


@pytest.mark.parametrize("step", [-1, 10**12, 1.5, True, "3"])
def test_a_step_that_could_not_be_found_again_is_refused(tmp_path: Path, step: Any) -> None:
    store = filled(tmp_path, [1])
    with pytest.raises(fb.InvalidInputError, match="step"):
        store.save(step, state_of(1))
    assert [path.name for path in store.directory.iterdir()] == ["step_000000000001"]


def test_steps_may_be_far_apart(tmp_path: Path) -> None:
    store = filled(tmp_path, [0, 999_999, 10**12 - 1])
    assert_loads(store, 10**12 - 1)


def test_what_is_saved_is_a_snapshot(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    weight = torch.zeros(3)
    store.save(1, {"weight": weight})
    weight += 1
    first = store.load().state["weight"]
    assert first.tolist() == [0, 0, 0]
    first += 5
    assert store.load().state["weight"].tolist() == [0, 0, 0]
    assert store.latest() is not None  # writing to loaded tensors doesn't reach the file


def test_leftovers_of_dead_processes_go_and_strangers_stay(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    store = filled(tmp_path, [1])
    leftover = store.directory / f".step_000000000009.{int(dead.stdout)}.partial"
    leftover.mkdir()
    (leftover / "tensors.safetensors").write_bytes(b"half")
    alive = store.directory / ".step_000000000009.1.partial"
    alive.mkdir()
    half_deleted = leftover.with_suffix(".doomed")
    half_deleted.mkdir()
    notes = store.directory / "notes.txt"
    notes.write_text("mine")
    store.save(2, state_of(2))
    assert not leftover.exists() and not half_deleted.exists() and alive.exists() and notes.read_text() == "mine"
    assert steps_in(store) == [1, 2]


# -- damage --------------------------------------------------------------------------------------------------------


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def cut_one_byte(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def remove(file: Path) -> None:
    file.unlink()


def replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("name", ["manifest.json", "tensors.safetensors"])
@pytest.mark.parametrize(
    "damage", [truncate, cut_one_byte, grow, empty, zeros, remove, replace_by_directory], ids=lambda f: f.__name__
)
def test_damage_is_reported_and_the_previous_one_used(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    store = filled(tmp_path, [1, 2])
    newest = store.paths()[-1]
    damage(newest / name)
    with pytest.warns(DamagedCheckpointWarning, match=newest.name):
        assert_loads(store, 1)
    problem = store.verify(newest)
    assert problem
    with pytest.raises(fb.RunDirectoryError, match=newest.name):
        store.load(newest)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    store = filled(tmp_path, [1])
    with pytest.raises(fb.RunDirectoryError, match="step_000000000007"):
        store.load(tmp_path / "store" / "step_000000000007")


def test_every_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    state = {"weight": torch.arange(5.0), "name": "größe", "rate": 0.1, "count": 3}
    path = store.save(4, state, {"loss": 0.5, "accuracy": 1e-7})
    noticed = {}
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        noticed[file.name] = 0
        for position in range(len(content)):
            flipped = bytearray(content)
            flipped[position] ^= 1 << (position * 7 % 8)
            file.write_bytes(flipped)
            if store.verify(path) is None:  # another spelling of the same JSON
                checkpoint = store.load(path)
                assert checkpoint.step == 4 and checkpoint.metrics == {"loss": 0.5, "accuracy": 1e-7}
                assert torch.equal(checkpoint.state.pop("weight"), state["weight"])
                assert checkpoint.state == {key: value for key, value in state.items() if key != "weight"}
            else:
                noticed[file.name] += 1
        file.write_bytes(content)
        if file.name == "tensors.safetensors":
            assert noticed[file.name] == len(content)
        assert noticed[file.name] > 0.9 * len(content)
    assert store.verify(path) is None


def test_all_damaged_is_none_and_never_a_part(tmp_path: Path) -> None:
    store = filled(tmp_path, [1, 2])
    for path in store.paths():
        truncate(path / "tensors.safetensors")
    with pytest.warns(DamagedCheckpointWarning) as caught, pytest.raises(fb.RunDirectoryError, match="no usable"):
        store.load()
    assert len(caught) == 2


def test_a_damaged_best_falls_back(tmp_path: Path) -> None:
    store = filled(tmp_path, range(3), metric="loss", mode="max")
    truncate(store.paths()[0] / "tensors.safetensors")
    with pytest.warns(DamagedCheckpointWarning):
        best = store.best()
    assert best is not None and best.name.endswith("1")


def test_an_unknown_version_is_reported_as_one(tmp_path: Path) -> None:
    store = filled(tmp_path, [1, 2])
    manifest = store.paths()[-1] / "manifest.json"
    body = json.loads(manifest.read_text())["body"]
    for changed, message in (
        ({**body, "version": 2}, "version is 2"),
        ({**body, "format": "other"}, "not a fastbudget"),
        ({**body, "files": {}}, "other files"),
        ({**body, "files": {"../../etc/passwd": {"bytes": 1, "sha256": ""}}}, "other files"),
    ):
        manifest.write_bytes(module._sealed(changed))
        assert message in str(store.verify(store.paths()[-1]))
        with pytest.warns(DamagedCheckpointWarning, match=message):
            assert_loads(store, 1)


@pytest.mark.parametrize("keep_last", [1, 2])
def test_training_goes_on_past_a_damaged_checkpoint(tmp_path: Path, keep_last: int) -> None:
    """Newest damaged, resumed from the one before: the same steps come again and the last good one is never dropped."""
    store = filled(tmp_path, [8, 10])
    truncate(store.directory / "step_000000000010" / "tensors.safetensors")
    store = CheckpointStore(store.directory, keep_last=keep_last, keep_best=0)
    for step in (9, 10, 11):
        if step == 10:
            with pytest.warns(DamagedCheckpointWarning, match="Replacing"):
                store.save(step, state_of(step))
        else:
            store.save(step, state_of(step))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedCheckpointWarning)
            assert_loads(store, step)
    assert steps_in(store) == [9, 10, 11][-keep_last:]
    assert [path.name for path in store.directory.iterdir() if path.name.startswith(".")] == []


def test_pruning_never_leaves_only_damaged_ones(tmp_path: Path) -> None:
    store = filled(tmp_path, [1, 2, 3])
    for step in (2, 3):
        truncate(store.directory / f"step_{step:012d}" / "tensors.safetensors")
    with pytest.warns(DamagedCheckpointWarning):
        CheckpointStore(store.directory, keep_last=1, keep_best=0).prune()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedCheckpointWarning)
        assert_loads(store, 1)


# -- no code from files --------------------------------------------------------------------------------------------


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("/").joinpath, ("nothing",))


def test_pickle_is_refused_in_any_place(tmp_path: Path) -> None:
    store = filled(tmp_path, [1, 2])
    newest = store.paths()[-1]
    for content in (pickle.dumps(Bomb()), pickle.dumps(state_of(2))):
        for name in ("manifest.json", "tensors.safetensors"):
            good = (newest / name).read_bytes()
            (newest / name).write_bytes(content)
            with pytest.warns(DamagedCheckpointWarning):
                assert_loads(store, 1)
            (newest / name).write_bytes(good)
    # Even a manifest that vouches for it doesn't get a pickle loaded.
    torch.save({"weight": torch.zeros(3)}, newest / "tensors.safetensors")
    body = json.loads((newest / "manifest.json").read_text())["body"]
    file = newest / "tensors.safetensors"
    body["files"] = {file.name: {"bytes": file.stat().st_size, "sha256": module._sha256(file)}}
    (newest / "manifest.json").write_bytes(module._sealed(body))
    assert store.verify(newest) is None
    with pytest.raises(Exception, match=r"[Hh]eader"):
        store.load(newest)


def test_saving_and_loading_never_unpickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("unpickled")

    for target in (pickle, torch):
        monkeypatch.setattr(target, "load", never)
    monkeypatch.setattr(pickle, "loads", never)
    monkeypatch.setattr(pickle, "Unpickler", never)
    assert_loads(filled(tmp_path, [1, 2]), 2)
    source = "\n".join(path.read_text() for path in Path(module.__file__).parent.glob("*.py"))
    assert "import pickle" not in source and "torch.load" not in source and "torch.save" not in source


def test_a_directory_can_be_copied_away(tmp_path: Path) -> None:
    path = filled(tmp_path, [1]).paths()[0]
    shutil.copytree(path, tmp_path / "elsewhere")
    assert CheckpointStore(tmp_path / "other").load(tmp_path / "elsewhere").step == 1
