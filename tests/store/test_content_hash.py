"""Equal content has an equal hash, whatever holds it; different content doesn't."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastbudget as fb
from fastbudget.store import hash_data, hash_example, hash_examples, hash_model

BASE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@dataclasses.dataclass
class Document:
    text: str
    label: int


@pytest.mark.parametrize(
    "same",
    [
        [BASE, torch.from_numpy(BASE), np.asfortranarray(BASE), BASE.astype(">f4"), torch.from_numpy(BASE).clone()],
        [BASE[:, ::2], torch.from_numpy(BASE)[:, ::2], np.ascontiguousarray(BASE[:, ::2])],
        [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)],
        [0.5, np.float32(0.5), torch.tensor(0.5, dtype=torch.bfloat16), np.array(0.5)],
        [{"a": 1, "b": [2, 3]}, {"b": (2, 3), "a": 1}],
        [["x", None, b"y"], ("x", None, bytearray(b"y"))],
        [np.array(["a", "b"]), ["a", "b"]],
        [{1, 2, 3}, frozenset([3, 2, 1])],
        [Document("a", 1), {"text": "a", "label": 1}],
    ],
)
def test_equal_contents(same: list[Any]) -> None:
    assert len({hash_example(value) for value in same}) == 1


DIFFERENT = [
    None, True, False, 0, 1, 2, 1.0, -0.0, 0.0, 1j, "", "1", b"1", b"", [], [[]], [None], {}, {"a": 1}, {"a": "1"},
    {"a": None}, ["a", "b"], ["ab"], ["a", ["b"]], [["a"], "b"], set(), BASE, BASE.reshape(3, 2, 4),
    BASE.astype(np.float64), BASE.view(np.int32), BASE + 1, np.zeros((0, 3)), np.zeros((0, 4)), np.zeros(3, np.int64),
    np.zeros(3, np.uint64), torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.float16),
    datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1), "2026-01-01", float("nan"), float("inf"),
]  # fmt: skip


def test_different_contents() -> None:
    for (i, a), (j, b) in itertools.combinations(enumerate(DIFFERENT), 2):
        assert hash_example(a) != hash_example(b), (i, j, a, b)


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
_CONTENTS = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)


@given(_CONTENTS, _CONTENTS)
def test_hashes_agree_exactly_when_contents_do(a: Any, b: Any) -> None:
    # repr tells 1 from True and 1.0, which == doesn't; dictionaries are sorted to make it independent of their order.
    def text(value: Any) -> str:
        if isinstance(value, dict):
            return f"{{{sorted((repr(key), text(item)) for key, item in value.items())}}}"
        return f"[{[text(item) for item in value]}]" if isinstance(value, list) else repr(value)

    assert (hash_example(a) == hash_example(b)) == (text(a) == text(b))


def test_images_by_pixels() -> None:
    image = pytest.importorskip("PIL.Image")
    one = image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    assert hash_example(one) == hash_example(one.copy())
    assert hash_example(one) != hash_example(one.rotate(180)) != hash_example(one.convert("RGB"))


def test_what_has_no_content_is_refused() -> None:
    for value in (object(), [1, object()], lambda: 1, torch.zeros(2, device="meta"), torch.zeros(2, 2).to_sparse()):
        with pytest.raises(fb.InvalidInputError, match=r"no (content )?hash"):
            hash_example(value)


def test_a_data_set_is_what_it_holds_in_any_order() -> None:
    hashes = hash_examples([(i, i % 2) for i in range(50)])
    assert hash_data(hashes) == hash_data(hashes[::-1]) == hash_data(hashes[np.random.default_rng(0).permutation(50)])
    assert hash_data(hashes) != hash_data(hashes[:-1]) and hash_data(hashes) != hash_data(
        np.vstack([hashes, hashes[:1]])
    )


def net(width: int = 4, activation: type[torch.nn.Module] = torch.nn.ReLU) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, width), activation(), torch.nn.BatchNorm1d(width))


def test_a_model_is_its_weights_and_structure() -> None:
    expected = hash_model(net())
    assert hash_model(net()) == expected
    strided = net()
    strided[0].weight.data = strided[0].weight.data.t().contiguous().t()
    assert not strided[0].weight.is_contiguous() and hash_model(strided) == expected
    assert hash_model(net(activation=torch.nn.GELU)) != expected  # no weights differ
    assert hash_model(net().to(torch.float64)) != expected
    changed = net()
    with torch.no_grad():
        changed[0].weight[0, 0] = torch.nextafter(changed[0].weight[0, 0], torch.tensor(9.0))
    assert hash_model(changed) != expected
    buffers = net()
    buffers[2].running_mean += 1
    assert hash_model(buffers) != expected
    weights = net().state_dict()
    assert hash_model(weights) == hash_model({name: value.numpy() for name, value in reversed(weights.items())})
    with pytest.raises(fb.InvalidInputError, match="torch module"):
        hash_model("resnet50")
