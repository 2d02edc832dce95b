"""The native thread pool: forks, several callers, the GIL."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import numpy as np
import pytest

from fastbudget import _C

N = 1_000_000


@pytest.fixture(scope="module")
def labels() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.integers(0, 100, N, dtype=np.int32), generator.integers(0, 100, N, dtype=np.int32)


@pytest.fixture(scope="module")
def expected(labels: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    predictions, references = labels
    hits = predictions[predictions == references]
    return [np.bincount(values, minlength=100).tolist() for values in (hits, predictions, references)]


def count(labels: tuple[np.ndarray, np.ndarray], threads: int) -> list[list[int]]:
    return [counts.tolist() for counts in _C.count_classes(*labels, threads=threads)]


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 8, 64, 100_000])
def test_any_number_of_threads_counts_the_same(
    labels: tuple[np.ndarray, np.ndarray], expected: list[list[int]], threads: int
) -> None:
    assert count(labels, threads) == expected
    predictions, references = labels
    flat = np.bincount(references.astype(np.int64) * 100 + predictions, minlength=10_000).reshape(100, 100)
    confusion = np.ones((100, 100), np.int64)
    _C.add_confusion(predictions, references, confusion, threads)
    assert np.array_equal(confusion, flat + 1)
    assert _C.label_range(predictions, threads) == (predictions.min(), predictions.max())


def test_a_forked_child_counts_after_its_parent_did(
    labels: tuple[np.ndarray, np.ndarray], expected: list[list[int]]
) -> None:
    assert count(labels, 4) == expected
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if count(labels, 4) == expected else 1)
        deadline = time.monotonic() + 30
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, 9)
                os.waitpid(child, 0)
                pytest.fail("the forked child hangs")
            time.sleep(0.005)
        assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert count(labels, 4) == expected


def test_a_fork_while_another_thread_counts(labels: tuple[np.ndarray, np.ndarray], expected: list[list[int]]) -> None:
    stop = threading.Event()

    def keep_counting() -> None:
        while not stop.is_set():
            _C.count_classes(*labels, threads=4)

    worker = threading.Thread(target=keep_counting)
    worker.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(0 if count(labels, 3) == expected else 1)
            deadline = time.monotonic() + 30
            while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                    pytest.fail("the forked child hangs")
                time.sleep(0.002)
            assert os.waitstatus_to_exitcode(ended[1]) == 0
    finally:
        stop.set()
        worker.join()


def _hits(seed: int) -> int:
    generator = np.random.default_rng(seed)
    predictions, references = generator.integers(0, 10, (2, 400_000))
    return int(_C.count_classes(predictions, references, threads=3)[0].sum())


def test_a_process_pool_after_native_use() -> None:
    here = [_hits(seed) for seed in range(4)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_hits, range(4)).get(timeout=60) == here


def test_many_python_threads_share_the_pool(labels: tuple[np.ndarray, np.ndarray], expected: list[list[int]]) -> None:
    results: list[bool] = []

    def work(threads: int) -> None:
        results.extend(count(labels, threads) == expected for _ in range(10))

    workers = [threading.Thread(target=work, args=(1 + index % 4,)) for index in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
        assert not worker.is_alive()
    assert results == [True] * 80


def test_the_interpreter_runs_on_while_native_code_counts() -> None:
    # One call that takes a while: if it held the interpreter's lock, the other thread could not move at all.
    many = np.broadcast_to(np.uint8(1), 400_000_000)
    started, inside = threading.Event(), []

    def counts() -> None:
        started.set()
        begin = time.perf_counter()
        _C.count_classes(many, many, num_classes=2, threads=1)
        inside.append((begin, time.perf_counter()))

    worker = threading.Thread(target=counts)
    worker.start()
    started.wait()
    ticks = []
    while worker.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    worker.join()
    begin, end = inside[0]
    during = [tick for tick in ticks if begin + 0.1 * (end - begin) < tick < end - 0.1 * (end - begin)]
    assert len(during) >= 5, f"{len(during)} ticks in {end - begin:.3f} s of counting"


def test_default_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert _C.default_threads() == 3
    for ignored in ("0", "-2", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", ignored)
        assert _C.default_threads() == min(256, len(os.sched_getaffinity(0)))
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert _C.default_threads() == min(256, len(os.sched_getaffinity(0)))
