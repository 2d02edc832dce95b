"""Nested state survives a round trip through disk bit by bit."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.optim import lr_scheduler as schedules

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore
from fastbudget.checkpoint.state_tree import flatten, unflatten


def round_trip(state: Any, directory: Path) -> Any:
    store = CheckpointStore(directory / "store")
    return store.load(store.save(len(store.paths()), state)).state


def same(a: Any, b: Any) -> bool:
    """Return whether two states are the same bits and types."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
        return torch.equal(*bits)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.generic):
        return type(a) is type(b) and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return type(b) is float and (a.hex() == b.hex() or (math.isnan(a) and math.isnan(b)))
    return type(a) is type(b) and a == b


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16, torch.uint32,
    torch.uint64,
]  # fmt: skip


def test_everything_a_state_may_hold(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {
        "dtypes": [(torch.randn(3, 4) * 50).to(dtype) for dtype in DTYPES],
        "empty": torch.zeros(0, 3),
        "zero-dim": torch.tensor(2.5),
        "transposed": torch.arange(12.0).reshape(3, 4).T,
        "strided": torch.arange(20)[::3],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "nan": torch.tensor([math.nan, math.inf, -math.inf, -0.0]),
        "floats": [math.nan, math.inf, -math.inf, -0.0, 0.1, 5e-324, 1.7976931348623157e308],
        "integers": [0, -1, 2**63, -(2**70), True, False],
        "nothing": [None, {}, [], (), ""],
        "text": ["ü", "\x00", "\ud800", 'quote"'],
        "tuple": (1, ("a", [2.0])),
        "size": torch.Size([3, 4]),
        "counter": Counter({30: 1, 60: 2}),
        7: {"int keys": {0: 1, -1: 2}},
        "numpy": [
            np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1], np.array(3.5), np.zeros((0, 2)), np.float64(0.1),
            np.array([True, False]), np.arange(3, dtype=np.uint32), np.arange(4, dtype=np.uint64) + 2**63,
            np.array([1.5], np.float16), np.array([1 + 2j], np.complex64),
        ],
        "numpy scalars": [np.int32(5), np.float32(0.1), np.bool_(True), np.complex128(1 - 2j), np.uint64(2**64 - 1)],
        "random": [np.random.RandomState(1).get_state(), random.Random(1).getstate(), torch.get_rng_state()],
    }  # fmt: skip
    loaded = round_trip(state, tmp_path)
    for key in state:
        assert same(loaded[key], state[key]), key
    assert list(loaded) == list(state)


def test_generators_continue_where_they_were(tmp_path: Path) -> None:
    np_random, py_random = np.random.RandomState(3), random.Random(3)
    np_random.normal(size=3), py_random.gauss(0, 1)  # both hold half a pair
    torch.manual_seed(3)
    state = {"numpy": np_random.get_state(), "python": py_random.getstate(), "torch": torch.get_rng_state()}
    loaded = round_trip(state, tmp_path)
    expected = np_random.normal(size=5).tolist(), py_random.gauss(0, 1), torch.randn(3).tolist()
    again_numpy, again_python = np.random.RandomState(), random.Random()
    again_numpy.set_state(loaded["numpy"])
    again_python.setstate(loaded["python"])
    torch.set_rng_state(loaded["torch"])
    assert (again_numpy.normal(size=5).tolist(), again_python.gauss(0, 1), torch.randn(3).tolist()) == expected


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "RMSprop"])
def test_an_optimizer_continues_exactly(tmp_path: Path, name: str) -> None:
    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
        options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
        return model, getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        model(torch.randn(6, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = made()
    for seed in range(3):
        step(model, optimizer, seed)
    loaded = round_trip({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path)
    assert set(loaded["optimizer"]["state"]) == set(optimizer.state_dict()["state"])
    again, again_optimizer = made()
    again.load_state_dict(loaded["model"])
    again_optimizer.load_state_dict(loaded["optimizer"])
    step(model, optimizer, 9), step(again, again_optimizer, 9)
    assert all(same(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 0.9**step),
        lambda optimizer: schedules.OneCycleLR(optimizer, max_lr=0.1, total_steps=20),
        lambda optimizer: schedules.MultiStepLR(optimizer, [2, 4, 5]),
        lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, T_0=3),
        lambda optimizer: schedules.SequentialLR(
            optimizer, [schedules.LinearLR(optimizer), schedules.StepLR(optimizer, 2)], milestones=[3]
        ),
    ],
    ids=["lambda", "one cycle", "multi step", "cosine", "sequential"],
)
def test_a_learning_rate_schedule_continues_exactly(tmp_path: Path, make: Any) -> None:
    def made() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        return optimizer, make(optimizer)

    def rates(optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> list[float]:
        seen = []
        for _ in range(steps):
            optimizer.step()
            schedule.step()
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    optimizer, schedule = made()
    rates(optimizer, schedule, 3)
    loaded = round_trip({"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, tmp_path)
    again_optimizer, again = made()
    again_optimizer.load_state_dict(loaded["optimizer"])
    again.load_state_dict(loaded["schedule"])
    assert rates(again_optimizer, again, 6) == rates(optimizer, schedule, 6)


def test_a_scaler_and_numpy_generators_continue_exactly(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))
    generators = [np.random.Generator(kind(5)) for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox)]
    for generator in generators:
        generator.random(3, dtype=np.float32)  # half a word is left over
    state = {"scaler": scaler.state_dict(), "numpy": [generator.bit_generator.state for generator in generators]}
    loaded = round_trip(state, tmp_path)
    assert same(loaded["scaler"], scaler.state_dict())
    torch.amp.GradScaler("cpu").load_state_dict(loaded["scaler"])
    for generator, kept in zip(generators, loaded["numpy"], strict=True):
        again = np.random.Generator(type(generator.bit_generator)(0))
        again.bit_generator.state = kept
        assert again.random(5, dtype=np.float32).tolist() == generator.random(5, dtype=np.float32).tolist()


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    weight = torch.randn(100, 50)
    tree, tensors = flatten({"embedding": weight, "head": {"weight": weight.detach()}, "other view": weight[:50]})
    assert len(tensors) == 2
    loaded = unflatten(tree, tensors)
    assert loaded["embedding"] is loaded["head"]["weight"]
    on_disk = round_trip({"embedding": weight, "head": {"weight": weight}, "view": weight[:50]}, tmp_path)
    assert on_disk["embedding"] is on_disk["head"]["weight"]
    assert same(on_disk["view"], weight[:50])


def test_views_that_differ_only_in_meaning_are_not_tied(tmp_path: Path) -> None:
    number = torch.tensor([1 + 2j, 3 - 1j])
    loaded = round_trip({"a": number, "conjugate": number.conj(), "bits": torch.view_as_real(number)}, tmp_path)
    assert loaded["a"].tolist() == [1 + 2j, 3 - 1j]
    assert loaded["conjugate"].tolist() == [1 - 2j, 3 + 1j]
    assert loaded["bits"].tolist() == [[1, 2], [3, -1]]


@pytest.mark.parametrize(
    "state",
    [
        {"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}},
        {"a": {"b": torch.zeros(2)}, "a.b": torch.ones(2)},
        {0: torch.zeros(2), "0": torch.ones(2)},
        {"": {"a": torch.zeros(2)}, "a": torch.ones(2)},
        {"x": [torch.zeros(2)], "x.0": torch.ones(2)},
        {"__metadata__": torch.zeros(2), "a": np.ones(2)},
        {"": torch.zeros(2)},
    ],
    ids=str,
)
def test_names_that_look_alike_are_kept_apart(state: dict[Any, Any], tmp_path: Path) -> None:
    assert same(round_trip(state, tmp_path), state)


with FakeTensorMode():
    FAKE = torch.zeros(2)

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(-3, 3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=3), json_like, max_size=4))
def test_any_plain_data_comes_back(state: dict[str, Any]) -> None:
    import json

    tree, tensors = flatten(state)
    assert not tensors
    assert same(unflatten(json.loads(json.dumps(tree)), {}), state)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "is a object"),
        (torch.nn.Linear(1, 1), "is a Linear"),
        ({1, 2}, "is a set"),
        (b"bytes", "is a bytes"),
        ({1.5: 1}, "keys must be text or integers"),
        ({True: 1}, "keys must be text or integers"),
        (namedtuple("Pair", "a b")(1, 2), "is a Pair"),
        (IntEnum("Color", "RED").RED, "is a Color"),
        (np.str_("text"), "is a str_"),
        (np.datetime64(0, "s"), "is a datetime64"),
        (FAKE, "FakeTensor"),
        (np.array(["text"]), "numpy array of"),
        (np.array([None]), "numpy array of"),
        (np.arange(3, dtype=">i4"), "numpy array of"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_by_name_and_nothing_is_saved(value: Any, message: str, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(fb.InvalidInputError, match=message) as caught:
        store.save(1, {"outer": {"inner": value}})
    assert "inner" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_read_only_numpy_arrays_are_saved_without_a_warning(tmp_path: Path) -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = round_trip({"a": array}, tmp_path)["a"]
    assert loaded.tolist() == [0, 1, 2]
    loaded[0] = 5  # and what is loaded is the reader's own


def test_mappings_and_gradients_come_back_plain(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    loaded = round_trip({"model": OrderedDict(weight=parameter)}, tmp_path)
    assert type(loaded["model"]) is dict
    assert type(loaded["model"]["weight"]) is torch.Tensor and not loaded["model"]["weight"].requires_grad
