"""The scoring head against projecting, log_softmax and argmax in float64."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn import functional

from fastbudget.core.errors import InvalidInputError
from fastbudget.ops import linear_cross_entropy, token_logprobs
from fastbudget.ops.logit_blocks import LogitBlocks, RowScores

_TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-5, torch.float16: 3e-5, torch.bfloat16: 2e-4}


def make(
    dtype: torch.dtype, tokens: int = 301, vocabulary: int = 5003, width: int = 48, bias: bool = True
) -> list[Any]:
    torch.manual_seed(tokens + vocabulary)
    shapes = (tokens, width), (vocabulary, width), (vocabulary,)
    hidden, weight, offset = (torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes)
    targets = torch.randint(0, vocabulary, (tokens,))
    targets[::7] = -100
    return [hidden, weight, targets, offset if bias else None]


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, bias: Any, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All logits in float64; bfloat16's are rounded as torch's projection rounds them."""
    logits = functional.linear(hidden.double(), weight.double(), None if bias is None else bias.double())
    if hidden.dtype == torch.bfloat16:
        logits = logits + (logits.bfloat16().double() - logits).detach()
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    scored = targets != -100
    wanted = targets.clamp(min=0)
    logprob = logits.log_softmax(-1).gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
    return (
        torch.where(scored, logprob, 0.0),
        (logits.argmax(-1) == wanted) & scored,
        torch.where(scored, logits.logsumexp(-1), 0.0),
    )


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", list(_TOLERANCE))
def test_scores_and_gradients_are_those_of_all_the_logits(
    dtype: torch.dtype, bias: bool, softcap: float | None
) -> None:
    if dtype == torch.bfloat16 and softcap:
        pytest.skip("each step of the cap rounds to bfloat16: no float64 reference rounds alike")
    inputs = make(dtype, bias=bias)
    # Make some targets the argmax.
    with torch.no_grad():
        inputs[0][1::4] = inputs[1][inputs[2].clamp(min=0)][1::4]
    expected = plain(*inputs, softcap)
    scores = token_logprobs(*inputs[:3], bias=inputs[3], softcap=softcap)
    assert scores.logprob.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    scale = expected[2].abs().max()
    assert (scores.logprob - expected[0]).abs().max() <= _TOLERANCE[dtype] * max(1.0, scale.item() / 10)
    assert (scores.logsumexp - expected[2]).abs().max() <= _TOLERANCE[dtype] * max(1.0, scale.item() / 10)
    assert torch.equal(scores.is_argmax, expected[1]) and 0.1 < scores.is_argmax.float().mean() < 0.9
    weights = torch.randn(2, len(inputs[2]), dtype=torch.float64)
    leaves = [leaf for leaf in (inputs[0], inputs[1], inputs[3]) if leaf is not None]
    wanted = torch.autograd.grad((expected[0] * weights[0] + expected[2] * weights[1]).sum(), leaves)
    got = torch.autograd.grad(
        (scores.logprob.double() * weights[0] + scores.logsumexp.double() * weights[1]).sum(), leaves
    )
    for ours, theirs in zip(got, wanted, strict=True):
        error = (ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()
        assert error <= {torch.bfloat16: 1e-2, torch.float16: 1e-3}.get(dtype, 10 * _TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [(1, 1), (3, 2048), (5, 2049), (1025, 17), (2, 4096)])
def test_any_size_and_chunk_gives_the_same(shape: tuple[int, int]) -> None:
    tokens, vocabulary = shape
    hidden, weight, targets, bias = make(torch.float32, tokens, vocabulary, width=8)
    whole = token_logprobs(hidden, weight, targets, bias=bias)
    for chunk in (1, 7, 5000):
        assert torch.allclose(
            token_logprobs(hidden, weight, targets, bias=bias, chunk=chunk).logprob, whole.logprob, atol=1e-5
        )
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        again = token_logprobs(hidden, weight, targets, bias=bias)
    finally:
        torch.set_num_threads(threads)
    assert torch.allclose(again.logprob, whole.logprob, atol=1e-5)
    assert torch.equal(again.is_argmax, whole.is_argmax)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_runs_on_other_devices_gives_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastbudget.ops import logit_blocks

    hidden, weight, targets, bias = (part.detach() for part in make(dtype, 64, 5003))
    targets = targets.clamp(min=0)
    native, portable = RowScores(64, hidden.device), RowScores(64, hidden.device)
    for block in LogitBlocks(hidden, weight, targets, bias, 0.0, 0):
        native.update(block)
        logit_blocks._update_on_device(block, portable.state[block.rows])
    assert torch.allclose(native.state, portable.state, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_ties_go_to_the_lowest_id() -> None:
    hidden, weight = torch.ones(3, 1), torch.tensor([[1.0], [2.0], [2.0], [0.0]])
    assert token_logprobs(hidden, weight, torch.tensor([1, 2, 0])).is_argmax.tolist() == [True, False, False]


def test_nan_and_infinity_never_count_as_correct() -> None:
    weight = torch.tensor([[1.0], [torch.nan], [0.0]])
    scores = token_logprobs(torch.ones(3, 1), weight, torch.tensor([0, 1, 2]))
    assert scores.logprob.isnan().all() and not scores.is_argmax.any()
    only_nan = token_logprobs(torch.full((1, 1), torch.nan), torch.ones(40, 1), torch.tensor([3]))
    assert only_nan.logprob.isnan().all() and not only_nan.is_argmax.any()
    only_last = torch.full((5000,), -torch.inf)
    only_last[4999] = 0.0
    forbidden = token_logprobs(torch.ones(2, 1), torch.ones(5000, 1), torch.tensor([4999, 0]), bias=only_last)
    assert forbidden.logprob.tolist() == [0.0, -torch.inf]
    assert forbidden.is_argmax.tolist() == [True, False]


def test_huge_logits_do_not_overflow() -> None:
    hidden = torch.tensor([[3e38], [-3e38], [1.0]])
    weight = torch.tensor([[1.0], [0.5], [-1.0]])
    scores = token_logprobs(hidden, weight, torch.tensor([0, 2, 1]))
    assert scores.logprob[:2].tolist() == [0.0, 0.0]
    assert scores.is_argmax.tolist() == [True, True, False]


def test_leading_dimensions_and_strides_are_kept() -> None:
    hidden = torch.randn(6, 4, 5)[:, ::2].transpose(0, 1)
    weight = torch.randn(16, 30).T[:, :16][:, 3:8]
    targets = torch.randint(0, 30, (2, 6))
    scores = token_logprobs(hidden, weight, targets)
    expected = plain(hidden, weight, targets, None, None)
    assert scores.logprob.shape == (2, 6)
    assert torch.allclose(scores.logprob, expected[0].float(), atol=1e-5)


def test_everything_ignored_gives_zeros_and_no_gradient() -> None:
    hidden, weight = torch.randn(4, 3, requires_grad=True), torch.randn(9, 3, requires_grad=True)
    scores = token_logprobs(hidden, weight, torch.full((4,), -100))
    scores.logprob.sum().backward()
    assert scores.logprob.tolist() == [0.0] * 4 and not scores.is_argmax.any()
    assert hidden.grad is not None and weight.grad is not None
    assert not hidden.grad.any() and not weight.grad.any()
    assert token_logprobs(hidden[:0], weight, torch.zeros(0, dtype=torch.int64)).logprob.shape == (0,)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy_is_torchs(reduction: str) -> None:
    hidden, weight, targets, bias = make(torch.float32, 100, 300)
    ours = linear_cross_entropy(hidden, weight, targets, bias=bias, reduction=reduction)
    theirs = functional.cross_entropy(functional.linear(hidden, weight, bias), targets, reduction=reduction)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-4)
    for mine, other in zip(
        torch.autograd.grad(ours.sum(), [hidden, weight, bias]),
        torch.autograd.grad(theirs.sum(), [hidden, weight, bias]),
        strict=True,
    ):
        assert torch.allclose(mine, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("strided", [False, True])
def test_the_operator_keeps_torchs_contract(strided: bool) -> None:
    hidden, weight, targets, bias = make(torch.float32, 9, 40, width=6)
    if strided:
        hidden = hidden.detach().repeat(1, 2)[:, ::2].requires_grad_()
        weight = weight.detach().T.contiguous().T.requires_grad_()
    torch.library.opcheck(torch.ops.fastbudget.token_scores.default, (hidden, weight, targets, bias, 3.0, -100, 4))


def test_it_compiles_whole_and_recomputes() -> None:
    hidden, weight, targets, bias = make(torch.float32, 12, 50, width=6)

    def loss(hidden: torch.Tensor) -> torch.Tensor:
        return linear_cross_entropy(hidden, weight, targets, bias=bias)

    (expected,) = torch.autograd.grad(loss(hidden), hidden)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    assert torch.allclose(torch.autograd.grad(compiled(hidden), hidden)[0], expected)
    from torch.utils.checkpoint import checkpoint

    again = checkpoint(loss, hidden, use_reentrant=False)
    assert torch.allclose(torch.autograd.grad(again, hidden)[0], expected)


_PEAK = """
import torch
from pathlib import Path
from fastbudget.ops import token_logprobs

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

hidden, weight = torch.randn(8192, 64), torch.randn(131072, 64)
targets = torch.randint(0, 131072, (8192,))
token_logprobs(hidden[:8], weight, targets[:8])
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is held now
before = resident("VmRSS")
token_logprobs(hidden, weight, targets)
print(resident("VmHWM") - before)
"""


def test_memory_stays_far_below_the_logits() -> None:
    """Held: 8,192 tokens of a vocabulary of 128k need at most 200 MB more; their logits are 4.2 GB."""
    run = subprocess.run([sys.executable, "-P", "-c", _PEAK], capture_output=True, text=True, check=True)
    # The block of logits alone has 8 MiB: less would mean that nothing was measured.
    assert 8e6 <= int(run.stdout) <= 200e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.ones(4, 3)}, r"hidden must be \[..., D\] and weight \[V, D\]"),
        ({"targets": torch.zeros(3, dtype=torch.int64)}, "targets must have hidden's shape without its last"),
        ({"targets": torch.zeros(2, dtype=torch.int32)}, r"targets must be int64, got torch.int32: convert"),
        ({"targets": torch.tensor([0, 4])}, r"targets must be -100 or in \[0, 4\), got 4 at flat index 1"),
        ({"weight": torch.ones(4, 5, dtype=torch.float16)}, "same dtype"),
        ({"hidden": torch.ones(2, 5).int(), "weight": torch.ones(4, 5).int()}, "same dtype, one of float16"),
        ({"bias": torch.ones(3)}, r"bias must be \[4\] of torch.float32, got \[3\]"),
        ({"softcap": 0.0}, "softcap must be a finite number above 0"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"weight": torch.ones(4, 5, device="meta")}, "must be on one device, got cpu, meta"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "hidden": torch.ones(2, 5), "weight": torch.ones(4, 5), "targets": torch.zeros(2, dtype=torch.int64)
    }  # fmt: skip
    with pytest.raises(InvalidInputError, match=message):
        token_logprobs(**(arguments | change))


def test_an_unknown_reduction_is_named() -> None:
    with pytest.raises(InvalidInputError, match='reduction must be "mean", "sum" or "none"'):
        linear_cross_entropy(torch.ones(2, 5), torch.ones(4, 5), torch.zeros(2, dtype=torch.int64), reduction="max")
