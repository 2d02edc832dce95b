"""Saving beside training: what is copied, when it counts, and where errors go."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore
from fastbudget.checkpoint import writing as module


class Gate:
    """Holds writers back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        write = module.write_shards

        def held(*arguments: Any) -> Any:
            assert self._open.wait(30)
            return write(*arguments)

        monkeypatch.setattr(module, "write_shards", held)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


def test_later_changes_do_not_leak_in(tmp_path: Path, gate: Gate) -> None:
    store = CheckpointStore(tmp_path)
    weight, array, nested = torch.zeros(1000), torch.zeros(3).numpy(), {"list": [1, 2]}
    parameter = torch.nn.Parameter(torch.zeros(5, 4).T)
    handle = store.save_async(1, {"w": weight, "a": array, "n": nested, "p": parameter, "view": weight[::2]})
    weight += 1
    array += 1
    nested["list"].append(3)
    with torch.no_grad():
        parameter += 1
    assert not handle.done and store.latest() is None and not any(path.name[0] != "." for path in tmp_path.iterdir())
    gate.open()
    assert handle.wait(30) == store.latest() and handle.done
    state = store.load().state
    assert not any(part.any() for part in (state["w"], state["a"], state["p"], state["view"]))
    assert state["n"] == {"list": [1, 2]} and state["p"].shape == (4, 5)


def test_latest_is_the_one_before_until_the_new_one_is_durable(tmp_path: Path, gate: Gate) -> None:
    gate.open()
    store = CheckpointStore(tmp_path, keep_last=1)
    first = store.save(1, {"w": torch.ones(3)})
    gate._open.clear()
    handle = store.save_async(2, {"w": torch.ones(3)})
    assert store.latest() == first and store.load().step == 1
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    gate.open()
    handle.wait()
    assert store.load().step == 2 and store.paths() == [handle.wait()]


def test_memory_is_reused_and_follows_the_state(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=100)
    dtypes = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64)
    addresses = set()
    states = {step: {"w": torch.full((4096,), step), "zero-dim": torch.tensor(step)} for step in range(5)}
    for step, state in states.items():
        store.save_async(step, state)
        addresses.add(store._staging._memory.data_ptr())
    assert len(addresses) == 1
    states[5] = {str(dtype): torch.ones(7, 3).to(dtype) for dtype in dtypes} | {"empty": torch.empty(0, 2)}
    states[6] = {"w": torch.arange(100_000)}
    states[7] = {"no": "tensors"}
    for step in (5, 6, 7):
        store.save_async(step, states[step])
    store.wait()
    for path, (step, state) in zip(store.paths(), states.items(), strict=True):
        loaded = store.load(path)
        assert loaded.step == step and list(loaded.state) == list(state)
        for name, value in state.items():
            same = loaded.state[name] == value if isinstance(value, str) else torch.equal(loaded.state[name], value)
            assert same, (step, name)


def test_saves_do_not_overtake_each_other(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=3, metric="score")
    handles = [store.save_async(step, {"w": torch.full((1000,), step)}, {"score": -step}) for step in range(5)]
    store.save(5, {"w": torch.full((1000,), 5)}, {"score": -5})
    assert all(handle.done for handle in handles)
    assert [int(path.name[5:]) for path in store.paths()] == [0, 3, 4, 5]
    best = store.best()
    assert best is not None and store.load(best).state["w"].unique().tolist() == [0]


@pytest.mark.parametrize("call", ["save", "save_async", "prune", "wait", "handle"])
def test_an_error_is_logged_at_once_and_raised_by_the_next_call(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"w": torch.ones(2)})

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "fastbudget"):
        patch.setattr(module, "write_shards", full)
        handle = store.save_async(2, {"w": torch.ones(2)})
        handle._result.exception(30)
    assert "Step 2 could not be saved" in caplog.text
    actions = {
        "save": lambda: store.save(3, {"w": torch.ones(2)}),
        "save_async": lambda: store.save_async(3, {"w": torch.ones(2)}),
        "prune": store.prune,
        "wait": store.wait,
        "handle": handle.wait,
    }
    with pytest.raises(fb.SaveError, match=r"Step 2 could not be saved.*No space left.*step_000000000001"):
        actions[call]()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000000001"]
    store.save(3, {"w": torch.ones(2)})  # told once: the store works on
    assert store.load().step == 3


def test_what_can_be_refused_is_refused_before_the_copy(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save_async(1, {"w": torch.ones(2)})
    with pytest.raises(fb.InvalidInputError, match=r"state\['w'\] is a object"):
        store.save_async(2, {"w": object()})
    with pytest.raises(fb.RunDirectoryError, match="saved before"):
        store.save_async(1, {"w": torch.ones(2)})
    with pytest.raises(fb.InvalidInputError, match="step must be"):
        store.save_async(-1, {})


def test_a_program_that_ends_finishes_its_save(tmp_path: Path) -> None:
    script = (
        "import sys, torch, fastbudget as fb; store = fb.CheckpointStore(sys.argv[1]); "
        "store.save_async(1, {'w': torch.ones(5_000_000)}); raise SystemExit('the end')"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert ended.stderr.strip() == "the end"
    assert CheckpointStore(tmp_path).load().state["w"].sum() == 5_000_000


def test_a_fork_does_not_wait_for_its_parents_save(tmp_path: Path, gate: Gate) -> None:
    store = CheckpointStore(tmp_path)
    store.save_async(1, {"w": torch.ones(2)})
    child = os.fork()
    if child == 0:
        store.wait()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_fork_saves_on_its_own(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save_async(1, {"w": torch.ones(2)}).wait()
    child = os.fork()
    if child == 0:
        store.save_async(2, {"w": torch.ones(2)}).wait(30)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store.load().step == 2


def test_a_store_that_is_gone_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    store = CheckpointStore(tmp_path)
    store.save_async(1, {"w": torch.ones(2)}).wait()
    (writer,) = set(threading.enumerate()) - before
    del store
    gc.collect()
    writer.join(10)
    assert not writer.is_alive()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gpu_tensors_are_copied_to_pinned_memory_behind_what_is_queued(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=10)
    weight = torch.zeros(4096, 4096, device="cuda")
    for step in range(1, 4):
        for _ in range(50):
            weight += 1 / 64  # still queued when the save begins
        store.save_async(
            step, {"w": weight, "t": weight[:8].T, "cpu": torch.ones(2), "rng": torch.cuda.get_rng_state()}
        )
        weight += 1000
        weight -= 1000
        assert store._staging._memory.is_pinned()
    store.wait()
    for path in store.paths():
        checkpoint = store.load(path)
        expected = checkpoint.step * 50 / 64
        assert checkpoint.state["w"].unique().tolist() == [expected] == checkpoint.state["t"].unique().tolist()
        assert checkpoint.state["w"].device.type == "cpu" and checkpoint.state["t"].shape == (4096, 8)
    torch.cuda.set_rng_state(checkpoint.state["rng"])
