"""Kills, full disks and unwritable places: what was saved before stays."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore


def state_of(step: int, elements: int = 60_000) -> dict[str, Any]:
    return {"weight": torch.full((elements,), float(step)), "other": torch.arange(elements) + step, "step": step}


def assert_whole(store: CheckpointStore, at_least: int) -> int:
    """Load every checkpoint; return the newest step."""
    for path in store.paths():
        assert store.verify(path) is None, f"{path.name}: {store.verify(path)}"
        checkpoint = store.load(path)
        assert checkpoint.state["weight"].unique().tolist() == [checkpoint.step]
        assert int(checkpoint.state["other"][0]) == checkpoint.step == checkpoint.state["step"]
    newest = store.load().step
    assert newest >= at_least
    return newest


@pytest.mark.parametrize(("keep_last", "background"), [(1, False), (1, True), (2, True)])
def test_sigkill_at_any_moment_of_saving(tmp_path: Path, keep_last: int, background: bool) -> None:
    """Children save in a loop and are killed; each durable save was told through a pipe before the next began."""
    store = CheckpointStore(tmp_path, keep_last=keep_last, keep_best=0)
    store.save(0, state_of(0))
    begin = time.perf_counter()
    store.save(1, state_of(1))
    one_save_s = time.perf_counter() - begin
    generator = random.Random(keep_last)
    durable, in_flight, kills = 1, 0, 0
    while kills < 20 or (not in_flight and kills < 200):  # on a busy machine few kills hit a save
        kills += 1
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)
                mine = CheckpointStore(tmp_path, keep_last=keep_last, keep_best=0)
                for step in range(durable + 1, durable + 1000):
                    if background:
                        mine.save_async(step, state_of(step)).wait()
                    else:
                        mine.save(step, state_of(step))
                    os.write(write_end, step.to_bytes(4, "big"))
            finally:
                os._exit(1)
        os.close(write_end)
        time.sleep(generator.uniform(0.0, 3 * one_save_s))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the child failed by itself"
        told = b""
        while part := os.read(read_end, 4096):
            told += part
        os.close(read_end)
        durable = max(durable, int.from_bytes(told[-4:], "big") if told else 0)
        in_flight += any(path.name.endswith(".partial") for path in tmp_path.iterdir())
        durable = assert_whole(store, at_least=durable)
    assert in_flight > 0, "no kill hit a save: the test proves nothing"
    store.save(durable + 1, state_of(durable + 1))
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == [], "leftovers were not pruned"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip(f"can't mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield place
    finally:
        libc.umount2(str(place).encode(), 2)


def test_a_full_disk(small_disk: Path) -> None:
    store = CheckpointStore(small_disk / "store", keep_last=1)
    store.save(1, state_of(1, 30_000))  # 360 kB
    with pytest.raises(fb.SaveError, match=r"last good checkpoint is .*step_000000000001") as caught:
        store.save(2, state_of(2, 200_000))
    assert isinstance(caught.value, OSError) and "space" in str(caught.value)
    assert assert_whole(store, 1) == 1
    assert [path.name for path in store.directory.iterdir()] == ["step_000000000001"], "the part written was left"
    store.save(3, state_of(3, 30_000))
    assert assert_whole(store, 3) == 3


def test_a_disk_filled_to_the_last_byte_at_any_size(small_disk: Path) -> None:
    store = CheckpointStore(small_disk / "store", keep_last=1)
    store.save(0, state_of(0, 20_000))
    filler = small_disk / "filler"
    failed = 0
    for attempt, kept_free in enumerate(range(4096, 400_000, 20_480)):
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        with filler.open("wb") as file:
            file.write(bytes(max(0, free - kept_free)))
        try:
            store.save(attempt + 1, state_of(attempt + 1, 20_000))
        except fb.SaveError:
            failed += 1
        assert_whole(store, 0)
        filler.unlink()
    assert failed >= 5


def test_a_file_size_limit(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, state_of(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for limit in (0, 10, 4096, 100_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(fb.SaveError, match="could not be saved"):
                store.save(2, state_of(2))
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert assert_whole(store, 1) == 1
            assert [path.name for path in tmp_path.iterdir()] == ["step_000000000001"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.save(2, state_of(2))
    assert assert_whole(store, 2) == 2


def test_a_place_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "inside", Path("/proc/nothing/here")):
        with pytest.raises(fb.SaveError, match="can't be made"):
            CheckpointStore(place)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_unwritable_directory_fails_loudly(tmp_path: Path) -> None:
    """Permissions don't bind root, so the child gives root up."""
    store = CheckpointStore(tmp_path / "store")
    store.save(1, state_of(1, 10))
    for part in (tmp_path, *tmp_path.parents):
        if part == Path("/tmp"):
            break
        part.chmod(0o755)
    for file in store.paths()[0].iterdir():
        file.chmod(0o644)
    store.directory.chmod(0o555)
    child = os.fork()
    if child == 0:
        code = 9
        try:
            if os.getuid() == 0:
                os.setgid(65534), os.setuid(65534)
            try:
                store.save(2, state_of(2, 10))
            except fb.SaveError as error:
                code = 0 if "ermission" in str(error) and "step_000000000001" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    store.directory.chmod(0o755)
    assert os.waitstatus_to_exitcode(status) == 0
    assert assert_whole(CheckpointStore(tmp_path / "store"), 1) == 1


def test_a_directory_that_vanished_fails_loudly(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "store")
    store.directory.rmdir()
    with pytest.raises(fb.SaveError, match="could not be saved"):
        store.save(1, state_of(1, 10))


def test_an_interrupted_save_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbudget.checkpoint import writing

    store = CheckpointStore(tmp_path)
    store.save(1, state_of(1, 10))

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.save(2, state_of(2, 10))
    assert assert_whole(store, 1) == 1
    store.save(2, state_of(2, 10))
    assert assert_whole(store, 2) == 2


def test_everything_is_synced_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power cut needs: each file and the directory's names on disk before the rename, and then the rename."""
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def watched_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append(("sync", path.name))
        sizes[path.name] = os.fstat(descriptor).st_size
        fsync(descriptor)

    def watched_rename(source: Any, target: Any, **kwargs: Any) -> None:
        events.append(("rename", Path(target).name))
        rename(source, target, **kwargs)

    sizes: dict[str, int] = {}
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    path = CheckpointStore(tmp_path / "new" / "store", max_shard_bytes=300_000).save(1, state_of(1))
    *before, last_rename, last_sync = events
    assert (last_rename, last_sync) == (("rename", path.name), ("sync", "store"))
    assert before[:2] == [("sync", "new"), ("sync", tmp_path.name)], "the store's own directories"
    synced = [name for kind, name in before if kind == "sync"]
    shards = sorted(file.name for file in path.glob("*.safetensors"))
    assert len(shards) == 2 and set(shards) < set(synced)
    assert all(sizes[name] == (path / name).stat().st_size for name in shards)
    manifest_at = next(index for index, name in enumerate(synced) if name.startswith(".manifest.json"))
    assert manifest_at > max(map(synced.index, shards))
    assert synced[manifest_at + 1 :] == [synced[-1]] and synced[-1].endswith(".partial"), "the names of the files"
