"""Log-probabilities of target tokens from hidden states, without ever holding the logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.errors import InvalidInputError
from .logit_blocks import LogitBlocks, RowScores, to_gradients

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class TokenScores(NamedTuple):
    """What an evaluation needs of each target token; all of the targets' shape [...].

    Ignored tokens have a ``logprob`` of 0, an ``is_argmax`` of False and a ``logsumexp`` of 0.

    Attributes:
        logprob: float32 (float64 for float64 inputs): log p(target); NaN where a logit of the row is NaN.
        is_argmax: bool: no token is likelier, nor as likely with a lower id, as ``logits.argmax() == target`` says.
        logsumexp: as ``logprob``: log of the sum of exp of the row's logits.
    """

    logprob: Tensor
    is_argmax: Tensor
    logsumexp: Tensor


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    ignore_index: int = -100,
    chunk: int | None = None,
) -> TokenScores:
    """Score targets under ``softmax(hidden @ weight.T + bias)`` block by block: [tokens, vocab] never exists.

    Equal to projecting and taking ``log_softmax`` and ``argmax``, with sums in float64 over blocks. On a CPU, logits
    of bfloat16 are rounded to bfloat16 as ``torch.nn.functional.linear`` rounds them; float16 is computed in float32.
    ``logprob`` and ``logsumexp`` have gradients, to ``hidden``, ``weight`` and ``bias``; the backward pass computes
    the blocks again, so that its memory is flat too.

    Args:
        hidden: [..., D], float16, bfloat16, float32 or float64: ``hidden[i]`` predicts ``targets[i]`` (shift first).
        weight: [V, D] of the same dtype: the output embedding.
        targets: int64 [...]; ``ignore_index`` where nothing is scored.
        bias: [V] of the same dtype.
        softcap: Logits are ``softcap * tanh(logits / softcap)``, as in Gemma 2.
        ignore_index: As in torch's cross-entropy.
        chunk: Tokens at a time; None: 1,024. The extra memory is about ``chunk * 2,048`` logits.

    Raises:
        InvalidInputError: shapes, dtypes or devices that don't fit together, or a target outside [0, V).
    """
    _check(hidden, weight, targets, bias, softcap, chunk)
    shape = targets.shape
    outputs = _token_scores(
        hidden.reshape(-1, hidden.shape[-1]),
        weight,
        targets.reshape(-1),
        bias,
        float(softcap or 0.0),
        ignore_index,
        chunk or 0,
    )
    logprob, is_argmax, logsumexp = (output.reshape(shape) for output in outputs)
    return TokenScores(logprob, is_argmax, logsumexp)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    chunk: int | None = None,
) -> Tensor:
    """Cross-entropy of ``hidden @ weight.T + bias`` that holds no logits, forward or backward.

    Args:
        hidden: [..., D].
        weight: [V, D].
        targets: int64 [...].
        bias: [V].
        softcap: See `token_logprobs`.
        ignore_index: As in torch's cross-entropy.
        reduction: ``"mean"`` over the tokens not ignored (NaN without one, as torch's), ``"sum"`` or ``"none"``.
        chunk: See `token_logprobs`.

    Raises:
        InvalidInputError: as `token_logprobs`, or an unknown reduction.
    """
    if reduction not in ("mean", "sum", "none"):
        raise InvalidInputError(f'reduction must be "mean", "sum" or "none", got {reduction!r}.')
    scores = token_logprobs(hidden, weight, targets, bias=bias, softcap=softcap, ignore_index=ignore_index, chunk=chunk)
    losses = -scores.logprob
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (targets != ignore_index).sum()


def _check(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, softcap: float | None, chunk: int | None
) -> None:
    if weight.ndim != 2 or hidden.ndim < 1 or hidden.shape[-1] != weight.shape[1] or weight.shape[0] < 1:
        raise InvalidInputError(
            "hidden must be [..., D] and weight [V, D] with V at least 1, got "
            f"{list(hidden.shape)} and {list(weight.shape)}."
        )
    if targets.shape != hidden.shape[:-1]:
        raise InvalidInputError(
            f"targets must have hidden's shape without its last dimension, {list(hidden.shape[:-1])}, got "
            f"{list(targets.shape)}."
        )
    if targets.dtype != torch.int64:
        raise InvalidInputError(f"targets must be int64, got {targets.dtype}: convert with targets.long().")
    if hidden.dtype not in _FLOATS or weight.dtype != hidden.dtype:
        raise InvalidInputError(
            "hidden and weight must have the same dtype, one of float16, bfloat16, float32 and float64, got "
            f"{hidden.dtype} and {weight.dtype}: convert one of them."
        )
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        raise InvalidInputError(
            f"bias must be [{weight.shape[0]}] of {weight.dtype}, got {list(bias.shape)} of {bias.dtype}."
        )
    devices = {tensor.device for tensor in (hidden, weight, targets, bias) if tensor is not None}
    if len(devices) > 1:
        raise InvalidInputError(
            f"hidden, weight, targets and bias must be on one device, got {', '.join(sorted(map(str, devices)))}."
        )
    if softcap is not None and not 0 < softcap < float("inf"):
        raise InvalidInputError(f"softcap must be a finite number above 0 or None, got {softcap}.")
    if chunk is not None and chunk < 1:
        raise InvalidInputError(f"chunk must be at least 1 or None, got {chunk}.")


@torch.library.custom_op("fastbudget::token_scores", mutates_args=())
def _token_scores(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, softcap: float, ignore_index: int, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    result = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    scored = targets != ignore_index
    outside = scored & ((targets < 0) | (targets >= weight.shape[0]))
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        raise InvalidInputError(
            f"targets must be {ignore_index} or in [0, {weight.shape[0]}), got {int(targets[at])} at flat index {at}."
        )
    everything = bool(scored.all())
    rows = hidden if everything else hidden[scored]
    wanted = targets if everything else targets[scored]
    blocks = LogitBlocks(rows, weight, wanted, bias, softcap, chunk)
    scores = RowScores(len(wanted), hidden.device)
    for block in blocks:
        scores.update(block)
    outputs = scores.logprob.to(result), scores.is_argmax, scores.logsumexp.to(result)
    if everything:
        return outputs
    return tuple(torch.zeros(len(targets), dtype=part.dtype, device=part.device).masked_scatter_(scored, part)
                 for part in outputs)  # type: ignore[return-value]  # fmt: skip


@_token_scores.register_fake
def _(hidden: Tensor, weight: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    result = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    like = targets.new_empty(targets.shape)
    return like.to(result), like.to(torch.bool), like.to(result)


@torch.library.custom_op("fastbudget::token_scores_backward", mutates_args=())
def _token_scores_backward(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    logsumexp: Tensor,
    logprob_gradient: Tensor,
    logsumexp_gradient: Tensor,
    softcap: float,
    ignore_index: int,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    scored = (targets != ignore_index).nonzero().squeeze(1)
    blocks = LogitBlocks(hidden[scored], weight, targets[scored], bias, softcap, chunk)
    # d logprob / d logit = [is target] - p and d logsumexp / d logit = p.
    on_target = logprob_gradient[scored].double()
    on_probability = logsumexp_gradient[scored].double() - on_target
    exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    hidden_gradient = torch.zeros(len(scored), hidden.shape[1], dtype=exact, device=hidden.device)
    weight_gradient = torch.empty_like(weight)
    bias_gradient = torch.empty_like(weight[:, 0])
    for columns, parts in blocks.by_columns():
        of_weight = torch.zeros(columns.stop - columns.start, hidden.shape[1], dtype=exact, device=hidden.device)
        of_bias = torch.zeros(len(of_weight), dtype=exact, device=hidden.device)
        for block in parts:
            at = block.rows
            to_gradients(block, logsumexp[scored[at]].double(), on_probability[at], on_target[at], softcap)
            block.add_products(hidden_gradient[at], of_weight)
            of_bias += block.logits.sum(0, dtype=exact)
        weight_gradient[columns] = of_weight
        bias_gradient[columns] = of_bias
    full = torch.zeros_like(hidden)
    full[scored] = hidden_gradient.to(hidden.dtype)
    return full, weight_gradient, bias_gradient


@_token_scores_backward.register_fake
def _(hidden: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros_like(hidden), torch.empty_like(weight), torch.empty_like(weight[:, 0])


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, weight, targets, bias, ctx.softcap, ctx.ignore_index, ctx.chunk = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(hidden, weight, targets, bias, output[2])


def _backward(ctx: Any, logprob: Tensor, _: Any, logsumexp: Tensor) -> tuple[Tensor | None, ...]:
    hidden, weight, targets, bias, sums = ctx.saved_tensors
    gradients = _token_scores_backward(
        hidden, weight, targets, bias, sums, logprob, logsumexp, ctx.softcap, ctx.ignore_index, ctx.chunk
    )
    return gradients[0], gradients[1], None, gradients[2] if bias is not None else None, None, None, None


_token_scores.register_autograd(_backward, setup_context=_keep_for_backward)
