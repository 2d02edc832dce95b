"""Token-weighted likelihood against a plain float64 computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastbudget as fb
from fastbudget.metrics.language_modeling import score_sequences

LN2 = math.log(2)


def reference_nats(logits: np.ndarray, targets: np.ndarray, ignore_index: int = -100) -> list[tuple[float, int]]:
    """Return (nats, tokens) per sequence, one token at a time."""
    result = []
    for row_logits, row_targets in zip(logits.astype(np.float64), targets.tolist(), strict=True):
        nats, tokens = 0.0, 0
        for scores, target in zip(row_logits, row_targets, strict=True):
            if target == ignore_index:
                continue
            peak = max(scores)
            nats += peak + math.log(math.fsum(math.exp(score - peak) for score in scores)) - scores[target]
            tokens += 1
        result.append((nats, tokens))
    return result


def made(seed: int, batch: int = 5, length: int = 7, vocabulary: int = 11) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 4, (batch, length, vocabulary))
    targets = generator.integers(0, vocabulary, (batch, length))
    targets[generator.random((batch, length)) < 0.3] = -100
    targets[0, 0] = 1
    return logits, targets


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 9), st.sampled_from([2, 3, 17, 300]))
def test_nats_equal_the_reference(seed: int, batch: int, length: int, vocabulary: int) -> None:
    logits, targets = made(seed, batch, length, vocabulary)
    expected = reference_nats(logits, targets)
    scored = score_sequences(logits, targets)
    assert scored[:, 1].tolist() == [tokens for _, tokens in expected]
    assert scored[:, 0] == pytest.approx([nats for nats, _ in expected], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.float64, 1e-6), (torch.bfloat16, 1e-6), (torch.float16, 1e-6)],
)
def test_torch_logits_equal_the_reference_on_the_same_numbers(dtype: torch.dtype, tolerance: float) -> None:
    logits, targets = made(1, 4, 9, 50)
    tensor = torch.from_numpy(logits).to(dtype)
    nats, tokens = map(sum, zip(*reference_nats(tensor.double().numpy(), targets), strict=True))
    metric = fb.metrics.get("nll")
    assert metric(tensor, torch.from_numpy(targets)) == pytest.approx(nats / tokens, rel=tolerance)
    assert metric(tensor.requires_grad_(), targets) == pytest.approx(nats / tokens, rel=tolerance)
    assert metric(tensor.detach().double().numpy(), targets) == pytest.approx(nats / tokens, rel=1e-12)


def test_more_rows_than_one_chunk() -> None:
    logits, targets = made(2, 30, 300, 3)
    nats, tokens = map(sum, zip(*reference_nats(logits, targets), strict=True))
    for given_logits in (
        logits,
        torch.from_numpy(logits),
        torch.from_numpy(logits.transpose(1, 0, 2).copy()).transpose(0, 1),
    ):
        assert fb.metrics.get("nll")(given_logits, targets) == pytest.approx(nats / tokens, rel=1e-6)


def test_all_metrics_follow_from_the_mean() -> None:
    logits, targets = made(3)
    nll = fb.metrics.get("nll")(logits, targets)
    assert fb.metrics.get("perplexity")(logits, targets) == pytest.approx(math.exp(nll))
    assert fb.metrics.get("bits_per_byte")(logits, targets) == pytest.approx(nll / LN2)
    assert fb.metrics.get("bits_per_byte", bytes_per_token=4.5)(logits, targets) == pytest.approx(nll / LN2 / 4.5)
    for wrong in (0, -1, math.nan):
        with pytest.raises(fb.InvalidInputError, match="bytes_per_token"):
            fb.metrics.get("bits_per_byte", bytes_per_token=wrong)


def logits_with_nll(nll: float, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Two-token vocabulary; the target 0 has exactly this negative log-likelihood."""
    share = math.exp(-nll)
    logits = np.tile([math.log(share), math.log1p(-share)], (1, tokens, 1))
    return logits, np.zeros((1, tokens), np.int64)


def test_published_cases(read_cases: Any) -> None:
    for case in read_cases("language_modeling"):
        for name, expected in case["expected"].items():
            metric = fb.metrics.get(name)
            state = metric.init()
            for batch in case["batches"]:
                state = metric.update(state, *logits_with_nll(batch["nll"], batch["tokens"]))
            assert metric.result(state) == pytest.approx(expected, rel=1e-4 if name == "perplexity" else 1e-7)


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 5), st.booleans())
def test_neither_batch_size_nor_padding_changes_anything(
    seed: int, batch_size: int, padding: int, as_torch: bool
) -> None:
    logits, targets = made(seed, 12, 6)
    metric = fb.metrics.get("perplexity")
    expected = metric(logits, targets)
    state = metric.init()
    for start in range(0, 12, batch_size):
        part, wanted = logits[start : start + batch_size], targets[start : start + batch_size]
        part = np.concatenate([part, np.full((len(part), padding, 11), 1e4)], 1)
        wanted = np.concatenate([wanted, np.full((len(wanted), padding), -100)], 1)
        state = metric.update(state, torch.from_numpy(part) if as_torch else part, wanted)
    assert metric.result(state) == pytest.approx(expected, rel=1e-6 if as_torch else 1e-12)


def test_merging_is_associative_and_keeps_its_arguments() -> None:
    metric = fb.metrics.get("nll")
    parts = [metric.update(metric.init(), *made(seed)) for seed in range(3)]
    a, b, c = parts
    left, right = metric.merge(metric.merge(a, b), c), metric.merge(a, metric.merge(b, c))
    assert np.array_equal(left.rows(), right.rows())
    assert metric.result(left) == metric.result(right)
    assert metric.result(metric.merge(metric.init(), a)) == metric.result(a)
    assert len(a.rows()) == 5


def test_any_ignore_index_is_left_out() -> None:
    logits, targets = made(4)
    padded = np.where(targets == -100, 0, np.where(targets == 0, 1, targets))
    expected = reference_nats(logits, padded, ignore_index=0)
    nats, tokens = map(sum, zip(*expected, strict=True))
    assert fb.metrics.get("nll", ignore_index=0)(logits, padded) == pytest.approx(nats / tokens)
    with pytest.raises(fb.InvalidInputError, match=r"targets\[\d, \d\] is -100"):
        fb.metrics.get("nll", ignore_index=0)(logits, targets)


@pytest.mark.parametrize("as_torch", [False, True])
def test_nan_logits_are_an_error_unless_not_scored(as_torch: bool) -> None:
    logits, targets = made(5)
    targets[2, 3] = -100
    clean = fb.metrics.get("nll")(logits, targets)
    logits[2, 3, :] = np.nan
    wrap = torch.from_numpy if as_torch else np.asarray
    assert fb.metrics.get("nll")(wrap(logits), targets) == pytest.approx(clean, rel=1e-6)
    targets[2, 3] = 1
    with pytest.raises(fb.InvalidInputError, match=r"logits\[2\] holds NaN"):
        fb.metrics.get("nll")(wrap(logits), targets)


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (np.zeros((1, 2, 3)), np.array([[0, 3]]), r"targets\[0, 1\] is 3"),
        (np.zeros((2, 2, 3)), np.array([[0, 1], [-1, 0]]), r"targets\[1, 0\] is -1"),
        (
            np.zeros((2, 2, 3)),
            np.array([[0, 1, 2]]),
            r"logits must be \[B, T, V\] for targets \[1, 3\], got \[2, 2, 3\]",
        ),
        (np.zeros((4, 3)), np.array([[0, 1], [2, 0]]), r"logits must be \[B, T, V\]"),
        (np.zeros((1, 2, 3)), np.array([[0.0, 1.0]]), "targets must be integer"),
        (np.zeros((1, 2, 3)), np.array([0, 1]), r"targets must be integer \[B, T\]"),
    ],
)
def test_bad_shapes_and_targets_are_named(logits: np.ndarray, targets: np.ndarray, message: str) -> None:
    for wrap in (np.asarray, torch.from_numpy):
        with pytest.raises(fb.InvalidInputError, match=message):
            fb.metrics.get("nll")(wrap(logits), targets)


def test_nothing_scored_is_an_error() -> None:
    metric = fb.metrics.get("perplexity")
    with pytest.raises(fb.InvalidInputError, match="at least one scored token"):
        metric(np.zeros((2, 3, 4)), np.full((2, 3), -100))
    with pytest.raises(fb.InvalidInputError, match="at least one scored token"):
        metric.result(metric.init())


def test_the_interval_holds_the_value_and_sequences_without_tokens_change_nothing() -> None:
    metric = fb.metrics.get("perplexity")
    logits, targets = made(6, 40)
    full = metric.interval(metric.update(metric.init(), logits, targets))
    assert full.low < full.value < full.high
    assert full.method == "bootstrap over sequences (approximate)" and full.num_examples == 40
    # Fully padded sequences carry no information: resamples of nothing but them must not make the interval NaN.
    one = metric.update(metric.init(), logits[:1], targets[:1])
    padded = metric.update(one, np.zeros((9, 7, 11)), np.full((9, 7), -100))
    value = metric.interval(padded)
    assert math.isfinite(value.low) and math.isfinite(value.high)
    assert value.value == pytest.approx(metric.result(one))


def test_groups_are_resampled_whole() -> None:
    metric = fb.metrics.get("nll")
    generator = np.random.default_rng(7)
    state = metric.init()
    for level in generator.uniform(0.3, 3.0, 20):  # twenty documents, ten blocks each, alike within
        logits, targets = logits_with_nll(level, 8)
        state = metric.update(state, np.repeat(logits, 10, 0), np.repeat(targets, 10, 0))
    alone = metric.interval(state)
    grouped = metric.interval(state, groups=np.repeat(np.arange(20), 10))
    assert grouped.value == alone.value
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)  # √10 in theory
    assert "20 groups" in grouped.method
