"""Token-weighted negative log-likelihood and what follows from it."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..stats import bootstrap_ratio
from .arrays import to_numpy
from .metric_protocol import Metric, MetricValue
from .registered import register

FloatArray = npt.NDArray[np.float64]

# Rows of logits turned to float32/64 at a time: a whole second copy can be tens of gigabytes.
_CHUNK_ROWS = 4096


@dataclass(frozen=True)
class SequenceNll:
    """Per sequence: summed negative log-likelihood in nats and scored tokens; float64 [n] each."""

    nats: FloatArray
    tokens: FloatArray


def _row_nats(logits: Any, targets: npt.NDArray[np.int64]) -> FloatArray:
    """Return -log p(target) per row, from logits [rows, vocabulary], in chunks."""
    nats = np.empty(len(targets))
    for start in range(0, len(targets), _CHUNK_ROWS):
        piece = slice(start, start + _CHUNK_ROWS)
        if hasattr(logits, "detach"):
            import torch

            rows = logits[piece].detach().float()
            wanted = torch.from_numpy(targets[piece]).to(rows.device)
            values = torch.nn.functional.cross_entropy(rows, wanted, reduction="none")
            nats[piece] = values.double().cpu().numpy()
        else:
            rows = np.asarray(logits[piece], np.float64)
            peak = rows.max(axis=1, keepdims=True)
            normalizer = np.log(np.exp(rows - peak).sum(axis=1)) + peak[:, 0]
            nats[piece] = normalizer - rows[np.arange(len(rows)), targets[piece]]
    return nats


def score_sequences(logits: Any, targets: Any, ignore_index: int = -100) -> SequenceNll:
    """Score target tokens under logits.

    Args:
        logits: float [B, T, V]; torch or numpy.
        targets: int [B, T]; positions equal to ``ignore_index`` are not scored.
        ignore_index: As in torch's cross-entropy.

    Raises:
        InvalidInputError: shapes that don't match, a target outside [0, V), NaN logits.
    """
    wanted = to_numpy(targets)
    if wanted.ndim != 2 or wanted.dtype.kind not in "iu":
        raise InvalidInputError(f"targets must be integer [B, T], got shape {list(wanted.shape)} of {wanted.dtype}.")
    shape = tuple(logits.shape)
    if len(shape) != 3 or shape[:2] != wanted.shape:
        raise InvalidInputError(f"logits must be [B, T, V] for targets {list(wanted.shape)}, got {list(shape)}.")
    flat = wanted.astype(np.int64).ravel()
    scored = flat != ignore_index
    outside = scored & ((flat < 0) | (flat >= shape[2]))
    if outside.any():
        where = int(np.flatnonzero(outside)[0])
        raise InvalidInputError(
            f"targets[{where // wanted.shape[1]}, {where % wanted.shape[1]}] is {flat[where]}: "
            f"not a token of a vocabulary of {shape[2]}."
        )
    nats = _row_nats(logits.reshape(-1, shape[2]), np.where(scored, flat, 0))
    nats = np.where(scored, nats, 0.0).reshape(wanted.shape)
    if np.isnan(nats).any():
        where = int(np.flatnonzero(np.isnan(nats).any(axis=1))[0])
        raise InvalidInputError(f"logits[{where}] holds NaN: the model gives no probability.")
    return SequenceNll(nats.sum(1), scored.reshape(wanted.shape).sum(1).astype(np.float64))


class _NllMetric(Metric[SequenceNll]):
    """A function of the token-weighted mean NLL, so that no batch size or padding changes it."""

    higher_is_better: ClassVar[bool] = False

    def __init__(self, *, ignore_index: int = -100) -> None:
        self.ignore_index = ignore_index

    @abstractmethod
    def _from_mean(self, nats_per_token: float) -> float:
        """Return what the subclass measures."""

    def init(self) -> SequenceNll:
        """Return the state of no sequences."""
        return SequenceNll(np.zeros(0), np.zeros(0))

    def update(self, state: SequenceNll, predictions: Any, references: Any) -> SequenceNll:
        """Add logits [B, T, V] and target tokens [B, T]."""
        return self.merge(state, score_sequences(predictions, references, self.ignore_index))

    def merge(self, a: SequenceNll, b: SequenceNll) -> SequenceNll:
        """Return the sequences of both, in order."""
        return SequenceNll(np.concatenate([a.nats, b.nats]), np.concatenate([a.tokens, b.tokens]))

    def result(self, state: SequenceNll) -> float:
        """Return the value over all scored tokens."""
        tokens = state.tokens.sum()
        if tokens == 0:
            raise InvalidInputError(f"{self.name} needs at least one scored token.")
        return self._from_mean(float(state.nats.sum() / tokens))

    def interval(
        self, state: SequenceNll, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the value with a bootstrap interval over sequences, or over whole groups of them (documents)."""
        value = self.result(state)
        low, high = bootstrap_ratio(state.nats, state.tokens, groups=groups, confidence=confidence)
        unit = "sequences" if groups is None else f"{len(np.unique(groups))} groups of sequences"
        return MetricValue(
            value=value,
            low=self._from_mean(low),
            high=self._from_mean(high),
            confidence=confidence,
            method=f"bootstrap over {unit} (approximate)",
            num_examples=len(state.nats),
        )


@register("nll", task="language_modeling")
class NegativeLogLikelihood(_NllMetric):
    """Mean negative log-likelihood per token, in nats."""

    def _from_mean(self, nats_per_token: float) -> float:
        return nats_per_token


@register("perplexity", task="language_modeling")
class Perplexity(_NllMetric):
    """exp of the mean negative log-likelihood per token."""

    def _from_mean(self, nats_per_token: float) -> float:
        return math.exp(min(nats_per_token, 709.0))


@register("bits_per_byte", task="language_modeling")
class BitsPerByte(_NllMetric):
    """Mean negative log-likelihood per byte of text, in bits.

    Args:
        bytes_per_token: Mean bytes of text per token; 1 for byte-level models.
        ignore_index: Targets not scored.
    """

    def __init__(self, *, bytes_per_token: float = 1.0, ignore_index: int = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        if not bytes_per_token > 0:
            raise InvalidInputError(f"bytes_per_token must be above 0, got {bytes_per_token}.")
        self.bytes_per_token = bytes_per_token

    def _from_mean(self, nats_per_token: float) -> float:
        return nats_per_token / math.log(2) / self.bytes_per_token
