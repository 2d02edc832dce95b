"""Token files: against numpy, on any number of ranks, in forked children, and with files that are wrong or change."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import fastbudget as fb
from fastbudget.training import TokenDataset
from fastbudget.training.data._native import permute_range

TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(tokens: Any, dtype: str = "uint16", header: bytes = b"") -> Path:
        path = tmp_path / f"tokens.{dtype}"
        path.write_bytes(header + np.asarray(tokens).astype(dtype).tobytes())
        return path

    return written


def same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


def take(batches: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(batches, count))


def reference(tokens: np.ndarray, seq_len: int, batch_size: int, seed: int, rank: int, world: int) -> Iterator[Any]:
    """The slow, obvious reader."""
    windows = (len(tokens) - 1) // seq_len
    per_epoch = windows // (batch_size * world)
    for epoch in itertools.count():
        order = permute_range(windows, seed, epoch, 0, windows)
        for step in range(per_epoch):
            first = (step * world + rank) * batch_size
            starts = order[first : first + batch_size] * seq_len
            rows = np.stack([tokens[start : start + seq_len + 1] for start in starts]).astype(np.int64)
            yield torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("prefetch", [0, 3])
def test_batches_of_any_integer_type_are_those_of_the_reference(
    write: Callable[..., Path], dtype: str, prefetch: int
) -> None:
    information = np.iinfo(dtype)
    high = min(information.max, 2**63 - 1)
    tokens = np.random.default_rng(0).integers(information.min, high, 1003, dtype=np.int64)
    data = TokenDataset(write(tokens, dtype), seq_len=10, dtype=dtype, seed=7)
    for rank in range(3):
        got = take(data.batches(4, rank=rank, world_size=3, prefetch=prefetch), 30)
        assert same(got, take(reference(tokens.astype(dtype), 10, 4, 7, rank, 3), 30))
    inputs, targets = got[0]
    assert inputs.dtype == targets.dtype == torch.int64 and inputs.shape == targets.shape == (4, 10)
    assert inputs.is_contiguous() and targets.is_contiguous()
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_it_starts_anywhere_and_keeps_its_position(write: Callable[..., Path]) -> None:
    data = TokenDataset(write(np.arange(2001)), seq_len=20)
    whole = take(data.batches(8), 40)  # 12 batches an epoch
    for start in (0, 1, 11, 12, 13, 30):
        assert same(take(data.batches(8, start=start), 10), whole[start : start + 10])
        batches = data.batches(8)
        take(batches, start)
        again = data.batches(8)
        again.load_state_dict(batches.state_dict())
        assert same(take(again, 10), whole[start : start + 10])
    first, second = (torch.cat([batch[0] for batch in whole[at : at + 12]]) for at in (0, 12))
    assert not torch.equal(first, second), "a new epoch has a new order"
    assert len(set(first[:, 0].tolist())) == 96, "no window twice in an epoch"


def test_ranks_read_different_windows_and_together_the_global_batch(write: Callable[..., Path]) -> None:
    data = TokenDataset(write(np.arange(4001)), seq_len=10)
    alone = take(data.batches(12), 70)
    for world in (2, 3, 4):
        ranks = [take(data.batches(12 // world, rank=rank, world_size=world), 70) for rank in range(world)]
        for step, parts in enumerate(zip(*ranks, strict=True)):
            assert torch.equal(torch.cat([part[0] for part in parts]), alone[step][0])
    # One rank, two ranks, one rank: the position is in windows over all ranks.
    batches = data.batches(12)
    got = [batch[0] for batch in take(batches, 5)]
    pair = [data.batches(6, rank=rank, world_size=2) for rank in range(2)]
    for member in pair:
        member.load_state_dict(batches.state_dict())
    got += [torch.cat([next(member)[0] for member in pair]) for _ in range(40)]
    batches.load_state_dict(pair[0].state_dict())
    got += [batch[0] for batch in take(batches, 25)]
    assert all(torch.equal(x, y[0]) for x, y in zip(got, alone, strict=True))


def test_epochs_end_and_loaders_begin_again(write: Callable[..., Path]) -> None:
    data = TokenDataset(write(np.arange(500)), seq_len=10)
    assert len(data) == 49
    assert len(list(data.batches(4, epochs=2))) == 24
    assert list(data.batches(4, start=24, epochs=2)) == []
    loader = data.loader(4)
    assert len(loader) == 12 and same(list(loader), list(loader)) and len(list(loader)) == 12


def test_one_window_at_a_time(write: Callable[..., Path]) -> None:
    data = TokenDataset(write(np.arange(100)), seq_len=9)
    assert len(data) == 11
    inputs, targets = data[2]
    assert inputs.tolist() == list(range(18, 27)) and targets.tolist() == list(range(19, 28))
    assert torch.equal(data[-1][1], torch.arange(91, 100))
    with pytest.raises(IndexError):
        data[11]
    for workers in (0, 2):
        rows = torch.cat([batch[0] for batch in DataLoader(data, batch_size=4, num_workers=workers)])
        assert torch.equal(rows, torch.arange(99).reshape(11, 9))
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[5][0], data[5][0])


def test_a_header_is_skipped(write: Callable[..., Path]) -> None:
    data = TokenDataset(write(range(50), "int32", b"\xff" * 1024), seq_len=5, dtype="int32", offset_bytes=1024)
    assert data.num_tokens == 50 and data[0][0].tolist() == [0, 1, 2, 3, 4]


def test_batches_that_are_kept_stay_as_they_are(write: Callable[..., Path]) -> None:
    """Memory of dropped batches is used again; that of kept ones must not be."""
    tokens = np.random.default_rng(1).integers(0, 60_000, 50_000)
    batches = TokenDataset(write(tokens), seq_len=64).batches(8)
    kept, copies = [], []
    for step, (inputs, targets) in enumerate(itertools.islice(batches, 200)):
        if step % 3 == 0:
            kept.append((inputs[:4], targets))
            copies.append((inputs[:4].clone(), targets.clone()))
    assert same(kept, copies)


# -- processes and threads -------------------------------------------------------------------------------------------


def test_a_forked_child_goes_on_by_itself(write: Callable[..., Path]) -> None:
    data = TokenDataset(write(np.arange(20_000)), seq_len=16)
    expected = take(data.batches(4), 20)
    batches = data.batches(4)
    held = take(batches, 5)
    for _ in range(5):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                rest = take(batches, 15)
                code = 0 if same(held + rest, expected) else 2
                del rest, batches
            finally:
                os._exit(code)
        deadline = time.monotonic() + 30
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail("the forked child hangs")
            time.sleep(0.002)
        assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert same(held + take(batches, 15), expected)


def test_many_iterators_and_threads(write: Callable[..., Path]) -> None:
    data = TokenDataset(write(np.arange(30_000)), seq_len=16)
    expected = take(data.batches(4), 50)
    results: list[bool] = []

    def read() -> None:
        results.extend(same(take(data.batches(4), 50), expected) for _ in range(5))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [True] * 20


# -- files that are wrong or change ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "uint32"}, "not a multiple of uint32's 4 bytes"),
        ({"dtype": "float32"}, "dtype must be one of"),
        ({"dtype": ">u2"}, "byte order"),
        ({"dtype": "bool"}, "dtype must be one of"),
        ({"seq_len": 0}, "seq_len"),
        ({"seq_len": 101}, "holds 101 tokens; a window needs seq_len \\+ 1 = 102"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"offset_bytes": 1}, "not a multiple"),
        ({"offset_bytes": 202}, "none after offset_bytes"),
        ({"offset_bytes": -2}, "offset_bytes"),
    ],
    ids=str,
)
def test_what_a_data_set_refuses(write: Callable[..., Path], options: dict[str, Any], message: str) -> None:
    path = write(range(101))
    assert len(TokenDataset(path, seq_len=100)) == 1
    with pytest.raises(fb.InvalidInputError, match=message):
        TokenDataset(path, **{"seq_len": 10, **options})


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TokenDataset(tmp_path / "none", seq_len=4)
    (tmp_path / "empty").touch()
    with pytest.raises(fb.InvalidInputError, match="has 0 bytes"):
        TokenDataset(tmp_path / "empty", seq_len=4)
    data_path = tmp_path / "gone"
    data_path.write_bytes(bytes(100))
    data = TokenDataset(data_path, seq_len=4)
    data_path.unlink()
    with pytest.raises(fb.DataFileError, match="can't be opened"):
        data[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 11}, "global batch is 11 windows"),
        ({"batch_size": 4, "world_size": 3}, "4 on each of 3 ranks"),
        ({"batch_size": 0}, "batch_size"),
        ({"start": -1}, "start"),
        ({"prefetch": -1}, "prefetch"),
        ({"epochs": 0}, "epochs"),
        ({"rank": 1}, "rank 1 of world_size 1"),
        ({"rank": -1}, "rank"),
    ],
    ids=str,
)
def test_what_batches_refuse(write: Callable[..., Path], options: dict[str, Any], message: str) -> None:
    data = TokenDataset(write(range(101)), seq_len=10)
    with pytest.raises(fb.InvalidInputError, match=message):
        data.batches(**{"batch_size": 2, **options})


def test_a_position_of_other_data_is_refused(write: Callable[..., Path]) -> None:
    path = write(range(1001))
    batches = TokenDataset(path, seq_len=10).batches(3)
    next(batches)
    state = batches.state_dict()
    for other, what in [({"seq_len": 20}, "seq_len 10"), ({"seed": 1}, "seed 0")]:
        with pytest.raises(fb.InvalidInputError, match=what):
            TokenDataset(path, **{"seq_len": 10, **other}).batches(3).load_state_dict(state)
    with pytest.raises(fb.InvalidInputError, match="multiple of the global batch"):
        TokenDataset(path, seq_len=10).batches(2).load_state_dict(state)
    with pytest.raises(fb.InvalidInputError, match="lacks epoch"):
        batches.load_state_dict({key: value for key, value in state.items() if key != "epoch"})


@pytest.mark.parametrize(
    ("dtype", "bad", "vocab_size"),
    [
        ("uint16", 50_257, 50_257), ("uint16", 65_535, 65_535), ("int32", -1, 50_257), ("int8", -1, 200),
        ("int64", -(2**63), 2**40), ("uint64", 2**63, 2**40), ("int16", -5, 2**40), ("uint32", 100, 100),
    ],
)  # fmt: skip
def test_tokens_outside_the_vocabulary_are_found(
    write: Callable[..., Path], dtype: str, bad: int, vocab_size: int
) -> None:
    tokens = np.arange(5000).astype(dtype) % min(100, vocab_size)
    tokens[4321] = np.array([bad]).astype(dtype)[0]
    data = TokenDataset(write(tokens, dtype), seq_len=10, dtype=dtype, vocab_size=vocab_size)
    message = rf"token 4321 of .* is {bad}, which is not in \[0, {vocab_size}\)"
    with pytest.raises(fb.InvalidInputError, match=message):
        data.check_tokens()
    with pytest.raises(fb.InvalidInputError, match=message):
        data[432]
    for prefetch in (0, 2):
        batches = data.batches(4, epochs=1, prefetch=prefetch)
        with pytest.raises(fb.InvalidInputError, match=message):
            list(batches)
        with pytest.raises(fb.InvalidInputError, match=message):
            next(batches)
    tokens[4321] = 0
    good = TokenDataset(write(tokens, dtype), seq_len=10, dtype=dtype, vocab_size=vocab_size)
    good.check_tokens()
    assert len(list(good.batches(4, epochs=1))) == 124


def test_a_large_file_names_its_first_bad_token(write: Callable[..., Path]) -> None:
    tokens = np.zeros(5_000_000, np.uint16)
    tokens[[3_999_999, 4_000_001, 1_234_567]] = 9
    with pytest.raises(fb.InvalidInputError, match="token 1234567 "):
        TokenDataset(write(tokens), seq_len=10, vocab_size=9).check_tokens()
    with pytest.raises(fb.InvalidInputError, match="vocab_size"):
        TokenDataset(write(tokens), seq_len=10).check_tokens()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_file_truncated_while_it_is_read_is_an_error_not_a_crash(write: Callable[..., Path], prefetch: int) -> None:
    path = write(np.zeros(1_000_000))
    data = TokenDataset(path, seq_len=100)
    batches = data.batches(10, prefetch=prefetch)
    next(batches)
    os.truncate(path, 1_000_000)
    with pytest.raises(fb.DataFileError, match="has only 1000000 bytes left"):
        take(batches, 1000)
    with pytest.raises(fb.DataFileError, match="truncated"):
        data[len(data) - 1]


def test_it_keeps_its_promised_speed(write: Callable[..., Path]) -> None:
    """A fifth of the promise, which bench/training/token_reading.py measures: this machine may be busy."""
    path = write(np.random.default_rng(0).integers(0, 50_000, 8_000_000))
    batches = TokenDataset(path, seq_len=1024, vocab_size=50_000).batches(32)
    best = np.inf
    for _ in range(5):
        start = time.process_time()
        take(batches, 50)
        best = min(best, time.process_time() - start)
    assert 50 * 32 * 1024 / best > 120e6
