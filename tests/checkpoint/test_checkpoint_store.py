"""What is kept, what is found, and what damage does."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from xxhash import xxh3_128_hexdigest

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore, DamagedCheckpointWarning, leftovers, manifest, restoring
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


@pytest.mark.parametrize("metrics", [{"loss": "low"}, {"loss": None}, {"loss": torch.ones(2)}], ids=str)
def test_metrics_that_are_no_numbers_are_refused(tmp_path: Path, metrics: Any) -> None:
    with pytest.raises(fb.InvalidInputError, match="metrics must be numbers"):
        CheckpointStore(tmp_path).save(1, {}, metrics)
    assert CheckpointStore(tmp_path).load(CheckpointStore(tmp_path).save(1, {}, {"a": np.float32(0.5)})).metrics == {
        "a": 0.5
    }


def test_a_step_may_be_a_numpy_integer(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.load(store.save(np.int64(7), {})).step == 7


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


def started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def test_leftovers_of_dead_processes_go_and_strangers_stay(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    store = filled(tmp_path, [1])
    mine = leftovers.hidden_path(store.directory / "step_000000000009", "partial")
    place, own_pid = mine.name.split(".")[2], os.getpid()
    names = {
        f".step_000000000009.{place}.{int(dead.stdout)}-1-0.partial": False,
        f".step_000000000008.{place}.{int(dead.stdout)}-1-0.doomed": False,
        f".step_000000000009.{place}.{own_pid}-{int(started(own_pid)) - 1}-0.partial": False,  # the number, used again
        f".step_000000000009.{place}.1-{started(1)}-0.partial": True,
        mine.name: True,
        ".step_000000000009.00000000.1-1-0.partial": True,  # on another machine, lately
        ".step_000000000007.00000000.1-1-0.partial": False,  # on another machine, days ago
        ".step_000000000009.12345.partial": True,  # of an older fastbudget, lately
        ".mine": True,
        "notes": True,
    }
    for name in names:
        (store.directory / name).mkdir()
        (store.directory / name / "tensors.safetensors").write_bytes(b"half")
    for path in (store.directory / ".step_000000000007.00000000.1-1-0.partial").iterdir():
        os.utime(path, (0, 0))
        os.utime(path.parent, (0, 0))
    store.save(2, state_of(2))
    assert {name: (store.directory / name).exists() for name in names} == names
    assert steps_in(store) == [1, 2]


@pytest.mark.parametrize("how", ["load", "latest"])
def test_what_is_pruned_while_it_is_read_gives_way_to_what_replaced_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = filled(tmp_path, [1, 2], keep_last=1)
    read = restoring.read_manifest
    trained = []

    def slow_read(directory: Path) -> Any:
        if not trained:
            trained.append(True)
            store.save(3, state_of(3))  # as a save in the background does
            assert not directory.exists()
        return read(directory)

    monkeypatch.setattr(restoring, "read_manifest", slow_read)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = store.load().path if how == "load" else store.latest()
    assert found == store.directory / "step_000000000003"


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
    file = store.paths()[-1] / "manifest.json"
    body = json.loads(file.read_text())["body"]
    record = body["files"]["tensors.safetensors"]
    for changed, message in (
        ({**body, "version": 3}, "version is 3"),
        ({**body, "format": "other"}, "not a fastbudget"),
        ({**body, "hash": "md5"}, "hashes are 'md5'"),
        ({**body, "files": {}}, "lacks tensor 'weight'"),
        ({**body, "files": {"../../etc/passwd": record}}, "other files"),
        ({**body, "files": {"tensors.safetensors": {**record, "tensors": {}}}}, "lacks tensor 'weight'"),
        ({**body, "files": {"tensors.safetensors": 7}}, "malformed"),
        ({**body, "parts": ["weight", "step", "nested", "optimizer"]}, "lists the parts"),
        ({**body, "state": ["value", 1]}, "malformed"),
        ({**body, "state": "text"}, "malformed"),
        ({key: value for key, value in body.items() if key != "metrics"}, "malformed"),
        ({**body, "sharded": {"weight": {"dtype": "F32", "shape": [2], "chunks": []}}}, "malformed"),
    ):
        file.write_bytes(manifest.sealed(changed))
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
    content = (newest / "tensors.safetensors").read_bytes()
    hashes = {"header": xxh3_128_hexdigest(content), "tensors": {"weight": xxh3_128_hexdigest(content)}}
    for version in (
        {"files": {"tensors.safetensors": {"bytes": len(content), **hashes}}},
        {
            "version": 1,
            "files": {"tensors.safetensors": {"bytes": len(content), "sha256": sha256(content).hexdigest()}},
        },
    ):
        (newest / "manifest.json").write_bytes(manifest.sealed({**body, "torch": "2", **version}))
        with pytest.raises(fb.CheckpointError, match="not a safetensors file"):
            store.load(newest)
        with pytest.warns(DamagedCheckpointWarning, match="not a safetensors file"):
            assert_loads(store, 1)


HEADER = {"weight": {"dtype": "F32", "shape": [40, 10], "data_offsets": [0, 1600]}}


@pytest.mark.parametrize(
    "header",
    [
        b"no JSON", b"[]", b"7", {}, {"weight": 1}, {"weight": {**HEADER["weight"], "dtype": "PICKLE"}},
        {"weight": {**HEADER["weight"], "shape": [-40, -10]}}, {"weight": {**HEADER["weight"], "shape": [400, 10**9]}},
        {"weight": {**HEADER["weight"], "shape": ["40", 10]}},
        {"weight": {**HEADER["weight"], "data_offsets": [8, 1608]}},
        {"weight": {**HEADER["weight"], "data_offsets": [0, 1592]}}, {**HEADER, "other": HEADER["weight"]},
        b"[" * 100_000,
    ],
    ids=lambda header: str(header)[:60],
)  # fmt: skip
def test_a_malformed_file_that_its_manifest_vouches_for_is_a_clear_error(tmp_path: Path, header: Any) -> None:
    store = filled(tmp_path, [1, 2])
    newest = store.paths()[-1]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    head, data = len(text).to_bytes(8, "little") + text, bytes(1600)
    (newest / "tensors.safetensors").write_bytes(head + data)
    body = json.loads((newest / "manifest.json").read_text())["body"]
    record = {"header": xxh3_128_hexdigest(head), "tensors": {"weight": xxh3_128_hexdigest(data)}}
    body["files"] = {"tensors.safetensors": {"bytes": len(head + data), **record}}
    (newest / "manifest.json").write_bytes(manifest.sealed(body))
    with pytest.raises(fb.CheckpointError, match=r"tensors\.safetensors"):
        store.load(newest)
    with pytest.warns(DamagedCheckpointWarning):
        assert_loads(store, 1)


@pytest.mark.parametrize(
    "node",
    [
        ["code", "import os"], ["dict", 7], ["tensor", ["weight"]], ["scalar", ["O", "00"]], ["float", "nothing"], [],
        ["scalar", ["<f4", "00"]], ["counter", [["a", ["value", {}]]]],
        ["size", [["value", "a"]]], ["dict", [[[], []]]],
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_state_that_its_manifest_vouches_for_is_a_clear_error(tmp_path: Path, node: Any) -> None:
    store = filled(tmp_path, [1, 2])
    file = store.paths()[-1] / "manifest.json"
    body = json.loads(file.read_text())["body"]
    body["state"][1][-1][1] = node
    file.write_bytes(manifest.sealed(body))
    with pytest.raises(fb.CheckpointError, match="malformed"):
        store.load(store.paths()[-1])
    with pytest.warns(DamagedCheckpointWarning, match="malformed"):
        assert_loads(store, 1)


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


# -- files and formats -------------------------------------------------------------------------------------------------


def test_any_safetensors_reader_opens_the_files(tmp_path: Path) -> None:
    state = {"a": torch.arange(5, dtype=torch.int8), "b": {"c": torch.randn(3, 2), "d": torch.randn(4).bfloat16()}}
    path = CheckpointStore(tmp_path).save(1, state)
    opened = load_file(path / "tensors.safetensors")
    assert {name: tensor.tolist() for name, tensor in opened.items()} == {
        "a": state["a"].tolist(), "b.c": state["b"]["c"].tolist(), "b.d": state["b"]["d"].tolist(),
    }  # fmt: skip


def test_large_states_are_split_into_files(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, max_shard_bytes=1000)
    state = {f"t{index}": torch.randn(100) for index in range(5)} | {
        "large": torch.randn(1000),
        "empty": torch.empty(0),
    }
    path = store.save(1, state)
    names = [f"tensors-{index:05d}-of-00005.safetensors" for index in range(1, 6)]
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", *names]
    loaded = store.load().state
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    for name in names:
        content = (path / name).read_bytes()
        (path / name).unlink()
        assert f"{name} is missing" in str(store.verify(path))
        (path / name).write_bytes(content)
    assert store.verify(path) is None


def test_a_part_that_is_needed_can_be_required(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"model": {"weight": torch.ones(2)}, "step": 1})
    assert store.load(require=("model", "step")).step == 1
    with pytest.raises(fb.CheckpointError, match="no part 'optimizer', only 'model', 'step'"):
        store.load(require=("model", "optimizer"))


def test_checkpoints_of_the_first_format_go_on_loading(tmp_path: Path) -> None:
    """Written by the code that had it: sha256 of the whole file."""
    shutil.copytree(Path(__file__).parent / "cases" / "format_1", tmp_path / "store")
    store = CheckpointStore(tmp_path / "store", metric="loss", mode="min")
    checkpoint = store.load(store.best(), require=("model", "optimizer"))
    assert (checkpoint.step, checkpoint.metrics) == (7, {"loss": 0.25})
    state = checkpoint.state
    assert state["model"]["weight"].tolist() == [[0, 1, 2], [3, 4, 5]] and state["model"]["bias"].tolist() == [
        0.5,
        -0.5,
    ]
    assert state["optimizer"]["state"][0]["step"].item() == 1 and state["step"] == 7
    assert state["order"][0] == 1 and state["order"][1].tolist() == [0, 1, 2]
    file = store.paths()[0] / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "its hash differs" in str(store.verify(store.paths()[0]))
    with pytest.raises(fb.CheckpointError, match="its hash differs"):
        store.load(store.paths()[0])


def test_the_manifest_is_readable_by_people(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save(3, {"model": {"w": torch.ones(2)}, "step": 3}, {"loss": 0.5})
    body = json.loads((path / "manifest.json").read_text())["body"]
    assert (body["version"], body["step"], body["metrics"], body["parts"]) == (2, 3, {"loss": 0.5}, ["model", "step"])
    assert body["versions"]["torch"] == torch.__version__ and "fastbudget" in body["versions"]
    content = (path / "tensors.safetensors").read_bytes()
    assert body["files"]["tensors.safetensors"] == {
        "bytes": len(content),
        "header": xxh3_128_hexdigest(content[:-8]),
        "tensors": {"model.w": xxh3_128_hexdigest(content[-8:])},
    }


def test_the_interval_follows_from_measured_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    assert store.interval_s(3600.0) is None
    now = iter([0.0, 2.0, 10.0, 12.0, 20.0, 29.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
    for step in range(3):
        store.save(step, {})
    assert store.interval_s(3600.0) == fb.checkpoint_interval(2.0, 3600.0) == 120.0
