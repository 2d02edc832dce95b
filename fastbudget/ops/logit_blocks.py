"""The blocks of logits that the scoring head computes, reads and forgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ._native import native

_TOKENS = 1024
# A block of 1,024 tokens by 2,048 columns of float32 (8 MiB) stays in a CPU's cache between the product and the sums.
_COLUMNS = 2048
_COLUMNS_ON_DEVICE = 16384
_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float64: 2}


@dataclass(frozen=True, kw_only=True)
class LogitBlock:
    """``logits`` [rows, columns] of a slice of the tokens by a slice of the vocabulary; valid until the next block."""

    logits: Tensor
    rows: slice
    columns: slice
    hidden: Tensor
    weight: Tensor
    targets: Tensor

    def add_products(self, to_hidden: Tensor, to_weight: Tensor) -> None:
        """Add ``logits @ weight`` and ``logits.T @ hidden``; the logits hold their gradients by now."""
        if to_hidden.dtype == self.logits.dtype:
            to_hidden.addmm_(self.logits, self.weight)
            to_weight.addmm_(self.logits.T, self.hidden)
        else:
            to_hidden += self.logits @ self.weight
            to_weight += self.logits.T @ self.hidden


class LogitBlocks:
    """``hidden`` [T, D] times ``weight`` [V, D], block by block, in one buffer."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, softcap: float, chunk: int
    ) -> None:
        self.weight, self.bias, self.softcap = weight, bias, softcap
        # torch's float16 products on a CPU are several times slower than float32's.
        widen = hidden.device.type == "cpu" and hidden.dtype == torch.float16
        self.dtype = torch.float32 if widen else hidden.dtype
        self.hidden, self.targets = hidden.to(self.dtype), targets.contiguous()
        self.num_tokens = max(1, min(chunk or _TOKENS, len(hidden)))
        columns = _COLUMNS if hidden.device.type == "cpu" else _COLUMNS_ON_DEVICE
        self.num_columns = min(columns, len(weight))
        self.buffer = torch.empty(self.num_tokens * self.num_columns, dtype=self.dtype, device=hidden.device)

    def __iter__(self) -> Iterator[LogitBlock]:
        """Yield all blocks; the columns of a row come in order."""
        for _, parts in self.by_columns():
            yield from parts

    def by_columns(self) -> Iterator[tuple[slice, Iterator[LogitBlock]]]:
        """Yield each slice of the vocabulary with its blocks."""
        for first in range(0, len(self.weight), self.num_columns):
            columns = slice(first, min(first + self.num_columns, len(self.weight)))
            yield columns, self._blocks(columns)

    def _blocks(self, columns: slice) -> Iterator[LogitBlock]:
        weight = self.weight[columns].to(self.dtype)
        bias = None if self.bias is None else self.bias[columns].to(self.dtype)
        for start in range(0, len(self.hidden), self.num_tokens):
            rows = slice(start, min(start + self.num_tokens, len(self.hidden)))
            hidden = self.hidden[rows]
            logits = self.buffer[: len(hidden) * len(weight)].view(len(hidden), len(weight))
            if bias is None:
                torch.mm(hidden, weight.T, out=logits)
            else:
                torch.addmm(bias, hidden, weight.T, out=logits)
            if self.softcap:
                logits.div_(self.softcap).tanh_().mul_(self.softcap)
            yield LogitBlock(
                logits=logits, rows=rows, columns=columns, hidden=hidden, weight=weight, targets=self.targets[rows]
            )


class RowScores:
    """Running softmax statistics of [T] rows (Milakov and Gimelshein, 2018, arXiv:1805.02867)."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        # As `RowScore` of the native module: peak, sum of exp(logit - peak), target, best before and after the target.
        start = [-torch.inf, 0.0, torch.nan, -torch.inf, -torch.inf]
        self.state = torch.tensor(start, dtype=torch.float64, device=device).repeat(num_rows, 1)

    def update(self, block: LogitBlock) -> None:
        """Take in a block."""
        if block.logits.device.type == "cpu":
            native().update_row_scores(
                block.logits.data_ptr(),
                _CODES[block.logits.dtype],
                *block.logits.shape,
                block.logits.stride(0),
                block.columns.start,
                block.targets.data_ptr(),
                self.state[block.rows].data_ptr(),
                torch.get_num_threads(),
            )
        else:
            _update_on_device(block, self.state[block.rows])

    @property
    def logsumexp(self) -> Tensor:
        """float64 [T]."""
        return self.state[:, 0] + self.state[:, 1].log()

    @property
    def logprob(self) -> Tensor:
        """float64 [T]."""
        return self.state[:, 2] - self.logsumexp

    @property
    def is_argmax(self) -> Tensor:
        """Bool [T]."""
        _, total, target, before, after = self.state.T
        return (target > before) & (target >= after) & ~total.isnan()


def _update_on_device(block: LogitBlock, state: Tensor) -> None:
    """Do what the native `update_row_scores` does, in torch operations."""
    logits = block.logits.float() if block.logits.dtype.itemsize < 4 else block.logits
    column = (block.targets - block.columns.start).unsqueeze(1)
    inside = ((column >= 0) & (column < logits.shape[1])).squeeze(1)
    at = column.clamp(0, logits.shape[1] - 1)
    state[:, 2] = torch.where(inside, logits.gather(1, at).squeeze(1).double(), state[:, 2])
    index = torch.arange(logits.shape[1], device=logits.device)
    for part, where in ((3, index < column), (4, index > column)):
        best = logits.masked_fill(~where, -torch.inf).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        state[:, part] = torch.maximum(state[:, part], best.amax(1).double())
    peak = torch.fmax(torch.fmax(state[:, 3], state[:, 4]), torch.fmax(state[:, 0], state[:, 2]))
    base = torch.where(peak == -torch.inf, 0.0, peak)
    shifted = (logits - base.to(logits.dtype).unsqueeze(1)).exp_()
    state[:, 1] = state[:, 1] * (torch.where(peak == -torch.inf, peak, state[:, 0]) - base).exp() + shifted.sum(
        1, dtype=torch.float64
    )
    state[:, 0] = peak


def to_gradients(
    block: LogitBlock, logsumexp: Tensor, on_probability: Tensor, on_target: Tensor, softcap: float
) -> None:
    """Replace the block's logits by ``on_probability * p + on_target * [is target]``, through the soft cap.

    ``logsumexp``, ``on_probability`` and ``on_target`` are float64 [rows].
    """
    logits = block.logits
    if logits.device.type == "cpu":
        native().logit_gradients(
            logits.data_ptr(),
            _CODES[logits.dtype],
            *logits.shape,
            logits.stride(0),
            block.columns.start,
            block.targets.data_ptr(),
            logsumexp.contiguous().data_ptr(),
            on_probability.contiguous().data_ptr(),
            on_target.contiguous().data_ptr(),
            softcap,
            torch.get_num_threads(),
        )
        return
    exact = logits.float() if logits.dtype.itemsize < 4 else logits
    gradient = (exact - logsumexp.to(exact.dtype).unsqueeze(1)).exp_() * on_probability.to(exact.dtype).unsqueeze(1)
    column = (block.targets - block.columns.start).unsqueeze(1)
    inside = ((column >= 0) & (column < logits.shape[1])).squeeze(1)
    extra = torch.where(inside, on_target, 0.0).to(exact.dtype).unsqueeze(1)
    gradient.scatter_add_(1, column.clamp(0, logits.shape[1] - 1), extra)
    if softcap:
        gradient *= 1 - (exact / softcap) ** 2
    logits.copy_(gradient)
