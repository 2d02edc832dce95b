"""Counting-based metrics against scikit-learn and against counting in plain Python."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

import fastbudget as fb
from fastbudget.metrics import _native

FAMILIES = {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score}
DTYPES = [np.uint8, np.int32, np.int64, np.int8, np.uint16, np.bool_]


# scikit-learn warns about arrays of one label.
pytestmark = pytest.mark.filterwarnings("ignore:A single label was found")


def reference_value(name: str, predictions: np.ndarray, references: np.ndarray) -> float:
    """Return what scikit-learn says."""
    predictions, references = predictions.astype(np.int64), references.astype(np.int64)
    if name == "accuracy":
        return float(sk.accuracy_score(references, predictions))
    family, average = name.split("_")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(FAMILIES[family](references, predictions, average=average, zero_division=0))


NAMES = ["accuracy", *(f"{family}_{average}" for family in FAMILIES for average in ("macro", "micro", "weighted"))]
BINARY_NAMES = [*NAMES, "precision_binary", "recall_binary", "f1_binary"]


def laid_out(values: np.ndarray, layout: str) -> Any:
    """Return the same labels in another memory layout or container."""
    if layout == "strided":
        wide = np.zeros((len(values), 3), values.dtype)
        wide[:, 1] = values
        return wide[:, 1]
    if layout == "reversed":
        return values[::-1].copy()[::-1]
    if layout == "read-only":
        frozen = values.copy()
        frozen.flags.writeable = False
        return frozen
    if layout == "big-endian":
        return values.astype(values.dtype.newbyteorder(">"))
    if layout == "unaligned":
        memory = np.zeros(len(values) * values.itemsize + 1, np.uint8)
        memory[1:] = np.frombuffer(values.tobytes(), np.uint8)
        return memory[1:].view(values.dtype)
    if layout == "torch":
        return torch.from_numpy(values.copy())
    if layout == "list":
        return values.tolist()
    return values


LAYOUTS = ["plain", "strided", "reversed", "read-only", "big-endian", "unaligned", "torch", "list"]


@st.composite
def label_pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    classes = draw(st.sampled_from([1, 2, 3, 10, 63, 64, 65, 127, 200, 1000, 4096]))
    # Larger than one piece now and then, so that several threads count.
    n = draw(st.sampled_from([1, 2, 3, 7, 100, 1000, 131_073, 300_001]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtypes = [dtype for dtype in DTYPES if classes - 1 <= (1 if dtype is np.bool_ else np.iinfo(dtype).max)]
    references = generator.integers(0, classes, n)
    right = generator.random(n) < draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    predictions = np.where(right, references, generator.integers(0, classes, n))
    return predictions.astype(draw(st.sampled_from(dtypes))), references.astype(draw(st.sampled_from(dtypes))), classes


@given(
    label_pairs(), st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.booleans(), st.sampled_from([None, 1, 2, 7])
)
def test_every_metric_equals_scikit_learn(
    pair: tuple[np.ndarray, np.ndarray, int], first: str, second: str, says_classes: bool, threads: int | None
) -> None:
    predictions, references, classes = pair
    if len(predictions) > 10_000 and "list" in (first, second):
        first = second = "strided"
    a, b = laid_out(predictions, first), laid_out(references, second)
    names = BINARY_NAMES if classes == 2 else NAMES
    seen_both = set(np.unique(predictions)) | set(np.unique(references)) == {0, 1}
    for name in names:
        if name.endswith("_binary") and not seen_both:
            continue  # scikit-learn takes the only label present for a multiclass problem
        metric = fb.metrics.get(name, num_classes=classes if says_classes else None, threads=threads)
        expected = reference_value(name, predictions, references)
        assert metric(a, b) == pytest.approx(expected, abs=1e-12), name
        assert metric.result(metric.update(metric.init(), a, b)) == pytest.approx(expected, abs=1e-12), name


@given(label_pairs(), st.sampled_from([None, 1, 2, 5]))
def test_the_confusion_matrix_equals_scikit_learn(
    pair: tuple[np.ndarray, np.ndarray, int], threads: int | None
) -> None:
    predictions, references, classes = pair
    metric = fb.metrics.get("accuracy", num_classes=classes, threads=threads)
    state = metric.update(metric.init(), predictions, references)
    flat = references.astype(np.int64) * classes + predictions.astype(np.int64)
    assert np.array_equal(state, np.bincount(flat, minlength=classes**2).reshape(classes, classes))
    if classes <= 200:
        expected = sk.confusion_matrix(
            references.astype(np.int64), predictions.astype(np.int64), labels=np.arange(classes)
        )
        assert np.array_equal(state, expected)


def test_class_counts_equal_counting_in_plain_python() -> None:
    generator = np.random.default_rng(0)
    for classes in (1, 5, 64, 65, 5000, 70_000, 2**22):
        predictions, references = generator.integers(0, classes, (2, 2000))
        both, predicted, reference = _native.count_classes(predictions, references)
        agree = Counter(p for p, r in zip(predictions.tolist(), references.tolist(), strict=True) if p == r)
        size = max(predictions.max(), references.max()) + 1
        assert len(both) == len(predicted) == len(reference) == size
        assert both.sum() == sum(agree.values()) and all(both[c] == count for c, count in agree.items())
        assert np.array_equal(predicted, np.bincount(predictions, minlength=size))
        assert np.array_equal(reference, np.bincount(references, minlength=size))


@pytest.mark.parametrize("classes", [4097, 5000, 100_000])
def test_many_classes_need_no_matrix(classes: int) -> None:
    generator = np.random.default_rng(1)
    predictions, references = generator.integers(0, classes, (2, 20_000), dtype=np.int32)
    references[:10_000] = predictions[:10_000]
    for name in NAMES:
        assert fb.metrics.get(name)(predictions, references) == pytest.approx(
            reference_value(name, predictions, references), abs=1e-12
        )
    metric = fb.metrics.get("f1_macro")
    with pytest.raises(fb.InvalidInputError, match="all labels at once"):
        metric.update(metric.init(), np.array([classes]), np.array([0]))


def test_published_cases(read_cases: Any) -> None:
    for case in read_cases("classification"):
        for classes in [None, *case["num_classes"]]:
            for name, expected in case["expected"].items():
                metric = fb.metrics.get(name, num_classes=classes)
                value = metric(case["predictions"], case["references"])
                assert value == pytest.approx(expected, abs=1e-12), (case["name"], name, classes)
                fed = metric.update(metric.init(), np.array(case["predictions"]), np.array(case["references"]))
                assert metric.result(fed) == pytest.approx(expected, abs=1e-12), (case["name"], name, classes)


def test_batches_weigh_by_their_examples(read_cases: Any) -> None:
    # Accuracies such as .7 of 256 aren't whole counts of examples: each example is repeated until they are.
    for case in read_cases("batch_accuracies"):
        metric = fb.metrics.get("accuracy")
        state = metric.init()
        for batch in case["batches"]:
            n = batch["size"] * 10
            right = round(batch["accuracy"] * n)
            predictions = np.zeros(n, np.uint8)
            references = (np.arange(n) >= right).astype(np.uint8)
            assert metric(predictions, references) == pytest.approx(batch["accuracy"], abs=1e-12)
            state = metric.update(state, predictions, references)
        assert metric.result(state) == pytest.approx(case["expected"], abs=case["tolerance"])
        assert metric.result(state) != pytest.approx(
            np.mean([batch["accuracy"] for batch in case["batches"]]), abs=0.01
        )


def test_uint8_label_16_of_17_classes_lands_in_its_own_cell() -> None:
    metric = fb.metrics.get("accuracy", num_classes=17)
    labels = np.array([16], np.uint8)
    state = metric.update(metric.init(), labels, labels)
    assert state[16, 16] == 1 and np.asarray(state).sum() == 1


# -- states --------------------------------------------------------------------------------------------------------


@given(label_pairs(), st.integers(0, 2**32), st.integers(1, 9))
def test_any_split_merges_to_the_same_state(pair: tuple[np.ndarray, np.ndarray, int], seed: int, shards: int) -> None:
    predictions, references, _ = pair
    generator = np.random.default_rng(seed)
    metric = fb.metrics.get("f1_macro")
    whole = metric.update(metric.init(), predictions, references)
    cuts = np.sort(generator.integers(0, len(predictions) + 1, shards - 1))
    states = [
        metric.update(metric.init(), p, r)
        for p, r in zip(np.split(predictions, cuts), np.split(references, cuts), strict=True)
    ]
    while len(states) > 1:  # merged in a random order and bracketing
        a, b = (states.pop(int(generator.integers(len(states)))) for _ in range(2))
        before = np.array(a), np.array(b)
        states.append(metric.merge(a, b))
        assert np.array_equal(a, before[0]) and np.array_equal(b, before[1]), "merge changed its arguments"
    assert np.array_equal(states[0], whole)
    assert metric.result(states[0]) == metric(predictions, references)


def test_a_failed_update_adds_nothing() -> None:
    metric = fb.metrics.get("accuracy", num_classes=3)
    state = metric.update(metric.init(), [0, 1, 2], [0, 1, 1])
    before = np.array(state)
    with pytest.raises(fb.InvalidInputError):
        metric.update(state, [0] * 300_000 + [3], [0] * 300_001)
    assert np.array_equal(state, before)


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "precision_binary"])
@pytest.mark.parametrize(
    "empty", [[], np.zeros(0, np.int64), torch.zeros(0, dtype=torch.long)], ids=["list", "numpy", "torch"]
)
def test_no_example_is_an_error_and_an_empty_batch_is_not(name: str, empty: Any) -> None:
    metric = fb.metrics.get(name)
    with pytest.raises(fb.InvalidInputError, match="at least one example"):
        metric(empty, empty)
    state = metric.update(metric.init(), empty, empty)
    with pytest.raises(fb.InvalidInputError, match="at least one example"):
        metric.result(state)
    state = metric.update(state, [1, 0], [1, 0])
    assert metric.result(metric.update(state, empty, empty)) == 1.0


@pytest.mark.parametrize(
    ("predictions", "references", "classes", "message"),
    [
        ([0, 1, 3], [0, 1, 2], 3, r"predictions\[2\] is 3"),
        ([0, 1, 2], [0, 5, 2], 3, r"references\[1\] is 5"),
        ([0, -1, 2], [0, 1, 2], None, r"predictions\[1\] is -1"),
        ([0, 1, 2], [-100, 1, 2], 3, r"references\[0\] is -100"),
        ([0, 2**40], [0, 1], None, r"1099511627776"),
        ([0, 0], [0, 2**24], None, r"16777216"),
        ([0, 1], [0, 1, 2], None, "same length, got 2 and 3"),
        ([[0, 1]], [0], None, r"shape \[1, 2\] of int64"),
        ([0], [[0]], None, r"references must be class labels of shape \[n\]"),
        (["cat"], ["cat"], None, "must hold integer class labels"),
        ([0.0, 1.0], [0, 1], None, "must hold integer class labels"),
        ([[0.1, np.nan], [0.2, 0.1]], [1, 0], None, r"predictions\[0\] holds NaN"),
        (np.array([2**63 + 1], np.uint64), np.array([1], np.uint64), None, "beyond int64"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fed", [False, True], ids=["called", "fed"])
def test_bad_labels_are_named(predictions: Any, references: Any, classes: int | None, message: str, fed: bool) -> None:
    metric = fb.metrics.get("f1_macro", num_classes=classes)
    with pytest.raises(fb.InvalidInputError, match=message):
        metric.update(metric.init(), predictions, references) if fed else metric(predictions, references)


def test_an_out_of_range_label_is_found_anywhere_in_a_long_array() -> None:
    generator = np.random.default_rng(2)
    references = generator.integers(0, 10, 500_000, dtype=np.int32)
    for position in (0, 1, 131_071, 131_072, 131_073, 499_999):
        for value in (10, -1, 2**31 - 1):
            predictions = references.copy()
            predictions[position] = value
            with pytest.raises(fb.InvalidInputError, match=rf"predictions\[{position}\] is {value}"):
                fb.metrics.get("accuracy", num_classes=10)(predictions, references)


def test_scores_count_by_their_best_class() -> None:
    scores = np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3], [-np.inf, -5.0, -4.0]], np.float32)
    assert fb.metrics.get("accuracy")(scores, [1, 0, 2]) == 1.0
    assert fb.metrics.get("accuracy")(torch.from_numpy(scores).bfloat16().requires_grad_(), [1, 0, 1]) == 2 / 3
    assert fb.metrics.get("accuracy")(torch.from_numpy(scores).half(), [1, 0, 1]) == 2 / 3


def test_a_binary_average_refuses_a_third_class_and_defines_the_first_alone() -> None:
    metric = fb.metrics.get("f1_binary")
    with pytest.raises(fb.InvalidInputError, match="labels up to 2"):
        metric([0, 2], [0, 1])
    assert metric([0, 0], [0, 0]) == 0.0
    assert metric([1, 1], [1, 1]) == 1.0


def test_options_and_names_are_checked() -> None:
    with pytest.raises(fb.InvalidInputError, match="Did you mean 'f1_macro'"):
        fb.metrics.get("f1_marco")
    with pytest.raises(fb.InvalidInputError, match="doesn't take these options"):
        fb.metrics.get("accuracy", classes=3)
    for classes in (0, -1, 4097):
        with pytest.raises(fb.InvalidInputError, match="num_classes"):
            fb.metrics.get("accuracy", num_classes=classes)
    listed = fb.metrics.list(task="classification")
    assert set(BINARY_NAMES) <= set(listed) and "perplexity" not in listed
    assert "perplexity" in fb.metrics.list(task="language_modeling")
    assert {*listed, *fb.metrics.list(task="language_modeling")} <= set(fb.metrics.list())


def test_native_counting_refuses_what_it_would_misread() -> None:
    from fastbudget import _C

    good = np.zeros(4, np.int64)
    for wrong in (good.astype(">i8"), good.astype(np.float64), good.astype(np.uint32), np.zeros((2, 2), np.int64)):
        with pytest.raises((TypeError, ValueError)):
            _C.count_classes(wrong, good)
    for matrix in (np.zeros((2, 3), np.int64), np.zeros((2, 2), np.int32), np.zeros((2, 2), np.int64)[::-1]):
        with pytest.raises((TypeError, ValueError)):
            _C.add_confusion(good, good, matrix)
    frozen = np.zeros((2, 2), np.int64)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        _C.add_confusion(good, good, frozen)
    assert frozen.sum() == 0


def test_a_repeated_label_needs_no_memory() -> None:
    many = np.broadcast_to(np.int64(3), 1_000_000)
    assert many.strides == (0,)
    metric = fb.metrics.get("accuracy")
    assert metric.update(metric.init(), many, many)[3, 3] == 1_000_000
