"""Records, padding, and the loader that measures itself."""

from __future__ import annotations

import logging
import os
import pickle
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fastbudget as fb
from fastbudget.training import (
    MemmapDataset,
    PaddingCollate,
    ResumableSampler,
    SeededDataset,
    make_loader,
)
from fastbudget.training.data import loader_choice

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # fewer CPUs than workers

# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4)])
def test_records_of_any_type_and_shape(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    records = (np.random.default_rng(0).normal(size=(20, *shape)) * 50).astype(dtype)
    path = tmp_path / "records.bin"
    path.write_bytes(b"head" + records.tobytes())
    data = MemmapDataset(path, dtype=dtype, shape=shape, offset_bytes=4)
    assert len(data) == 20
    for index in (0, 7, 19, -1):
        assert np.array_equal(data[index].numpy(), records[index]) and data[index].shape == shape
    with pytest.raises(IndexError):
        data[20]
    assert torch.equal(torch.stack(list(data)), torch.from_numpy(records))
    for workers in (0, 2):
        batches = list(DataLoader(data, batch_size=8, num_workers=workers))
        assert torch.equal(torch.cat(batches), torch.from_numpy(records))
    assert torch.equal(pickle.loads(pickle.dumps(data))[3], data[3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (7,)}, "not a multiple of records of 28 bytes"),
        ({"shape": (0,)}, "positive"),
        ({"dtype": ">f4"}, "no tensor"),
        ({"dtype": "U3"}, "no tensor"),
        ({"offset_bytes": 400}, "none after"),
    ],
    ids=str,
)
def test_what_records_refuse(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = tmp_path / "records.bin"
    np.zeros(100, np.float32).tofile(path)
    with pytest.raises(fb.InvalidInputError, match=message):
        MemmapDataset(path, **{"dtype": "float32", "shape": (10,), **options})


def test_records_of_a_file_truncated_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "records.bin"
    np.zeros(1_000_000, np.float32).tofile(path)
    data = MemmapDataset(path, dtype="float32", shape=1000)
    assert data[999].sum() == 0
    os.truncate(path, 100_000)
    with pytest.raises(fb.DataFileError, match="has only 100000 bytes left"):
        data[999]


# -- padding -----------------------------------------------------------------------------------------------------------


def test_padding_of_mappings() -> None:
    samples = [
        {"input_ids": torch.arange(1, n + 1), "labels": torch.arange(1, n + 1), "weight": 0.5, "row": torch.tensor(n)}
        for n in (3, 5)
    ]
    batch = PaddingCollate({"input_ids": 9, "labels": -100, "weight": 0, "row": 0})(samples)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 9, 9], [1, 2, 3, 4, 5]]
    assert batch["labels"].tolist() == [[1, 2, 3, -100, -100], [1, 2, 3, 4, 5]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert batch["weight"].tolist() == [0.5, 0.5] and batch["row"].tolist() == [3, 5]
    with pytest.raises(fb.InvalidInputError, match="no value for 'labels'"):
        PaddingCollate({"input_ids": 0})(samples)


def test_padding_of_tuples_and_tensors() -> None:
    samples = [(torch.ones(n, 2), torch.full((n,), n)) for n in (2, 1)]
    features, targets = PaddingCollate((0, -100), multiple_of=4)(samples)
    assert features.shape == (2, 4, 2) and features.sum() == 6
    assert targets.tolist() == [[2, 2, -100, -100], [1, -100, -100, -100]]
    assert PaddingCollate(7)([torch.tensor([1]), torch.tensor([1, 2])]).tolist() == [[1, 7], [1, 2]]
    with pytest.raises(fb.InvalidInputError, match="multiple_of"):
        PaddingCollate(multiple_of=0)


# -- the measured loader -----------------------------------------------------------------------------------------------


class Slow(torch.utils.data.Dataset[Any]):
    """Waits, as for a disk or a network: workers help even on one busy core."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.tensor([float(index), random.random()])


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_choice, "usable_cpus", lambda: 4)


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ({0: 9000, 1: 2000, 2: 2500, 4: 2400}, 0),  # tokens in memory: passing batches on costs more than making them
        ({0: 100, 1: 99, 2: 190, 4: 380}, 4),  # decoding that scales
        ({0: 100, 1: 98, 2: 190, 4: 205}, 2),  # more of them bring less than a fifth
        ({0: 100, 1: 99, 2: 101, 4: 99}, 1),  # a slow disk: one loads while the loop computes
        ({0: 100, 1: 110, 2: 90}, 1),  # falls: four are not tried
        ({0: 100, 1: 60, 2: 93, 4: 92}, 0),
    ],
)
def test_the_choice_of_workers(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    four_cpus: None,
    rates: dict[int, int],
    chosen: int,
) -> None:
    monkeypatch.setattr(loader_choice, "_batches_per_s", lambda loader, limit_s: rates[loader.num_workers])
    with caplog.at_level(logging.INFO, "fastbudget.training"):
        loader = make_loader(Slow(), 4)
    assert loader.num_workers == chosen and loader.persistent_workers == (chosen > 0)
    figures = ", ".join(f"{rate} with {workers}" for workers, rate in rates.items())
    assert caplog.messages == [f"Data loading uses {chosen} workers: batches/s were {figures}, on 4 CPUs."]


def test_the_rate_is_that_of_the_loader() -> None:
    rate = loader_choice._batches_per_s(make_loader(Slow(), 4, num_workers=0), 0.1)
    assert 1 < rate < 1 / (4 * 0.002)


def test_measuring_leaves_order_and_generators_alone(four_cpus: None) -> None:
    torch.manual_seed(3), random.seed(3)
    loader = make_loader(Slow(), 4, seed=5, measure_s=0.1)
    drawn = random.random(), float(torch.rand(()))
    torch.manual_seed(3), random.seed(3)
    assert drawn == (random.random(), float(torch.rand(())))
    sampler = loader.batch_sampler
    assert isinstance(sampler, ResumableSampler) and isinstance(loader.dataset, SeededDataset)
    first = next(iter(sampler.track(loader)))
    assert first[:, 0].tolist() == sampler.global_order(0, 4, epoch=0).tolist()
    direct = next(iter(make_loader(Slow(), 4, seed=5, num_workers=0)))
    assert torch.equal(first, direct)


def test_workers_that_fail_are_not_used(four_cpus: None, caplog: pytest.LogCaptureFixture) -> None:
    parent = os.getpid()

    class OnlyHere(Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            if os.getpid() != parent:
                raise OSError("no such device in a worker")
            return torch.zeros(1)

    with caplog.at_level(logging.WARNING, "fastbudget.training"):
        assert make_loader(OnlyHere(), 4, measure_s=0.2).num_workers == 0
    assert "no such device" in caplog.text


def test_small_data_and_bad_data() -> None:
    assert len(list(make_loader(TensorDataset(torch.zeros(3, 2)), 8, measure_s=0.1))) == 1
    with pytest.raises(fb.InvalidInputError, match="global batch is 16 samples"):
        make_loader(TensorDataset(torch.zeros(3, 2)), 8, world_size=2, drop_last=True)
    with pytest.raises(fb.InvalidInputError, match="empty"):
        make_loader([], 8)

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([torch.zeros(1)])

    for unusable in (Stream(), iter([1])):
        with pytest.raises(fb.InvalidInputError, match="__getitem__"):
            make_loader(unusable, 8)
