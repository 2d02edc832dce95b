"""Token-weighted negative log-likelihood and what follows from it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .inputs import is_tensor, to_numpy
from .metric_protocol import FloatArray
from .registered import register
from .row_metrics import SumMetric

# Rows of logits turned to float32/64 at a time: a whole second copy can be tens of gigabytes.
_CHUNK_BYTES = 64 * 2**20


def _row_scores(
    logits: Any, targets: npt.NDArray[np.int64], scored: npt.NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """Return -log p(target) and whether it is the likeliest token, per row of logits [rows, vocabulary].

    Rows that aren't scored give 0 and are never read.
    """
    nats, correct = np.zeros(len(targets)), np.zeros(len(targets))
    rows_at_once = max(1, _CHUNK_BYTES // (8 * max(1, int(logits.shape[1]))))
    score = _torch_scores if is_tensor(logits) else _numpy_scores
    for start in range(0, len(targets), rows_at_once):
        where = start + np.flatnonzero(scored[start : start + rows_at_once])
        if len(where):
            nats[where], correct[where] = score(logits, where, targets[where])
    return nats, correct


def _torch_scores(logits: Any, where: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    import torch

    rows = logits.detach()[torch.from_numpy(where).to(logits.device)]
    rows = rows.double() if rows.dtype == torch.float64 else rows.float()
    wanted = torch.from_numpy(targets).to(rows.device)
    nats = torch.nn.functional.cross_entropy(rows, wanted, reduction="none").double()
    # A row of NaN has an argmax too; its NLL is NaN, and that is refused.
    return nats.cpu().numpy(), (rows.argmax(1) == wanted).cpu().numpy()


def _numpy_scores(logits: Any, where: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    rows = np.asarray(logits[where], np.float64)
    peak = rows.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        normalizer = np.log(np.exp(rows - peak).sum(axis=1)) + peak[:, 0]
        return normalizer - rows[np.arange(len(rows)), targets], rows.argmax(1) == targets


def _targets(values: Any) -> npt.NDArray[np.int64]:
    targets = to_numpy(values, "targets")
    if targets.ndim != 2 or targets.dtype.kind not in "iu":
        raise InvalidInputError(f"targets must be integer [B, T], got shape {list(targets.shape)} of {targets.dtype}.")
    return targets.astype(np.int64)


def score_sequences(logits: Any, targets: Any, ignore_index: int = -100) -> FloatArray:
    """Score target tokens under logits or log-probabilities.

    Args:
        logits: float [B, T, V], torch (on any device) or numpy: ``logits[b, t]`` predicts ``targets[b, t]`` (shift
            them first). Log-probabilities are logits too. [B, T]: the log-probabilities of the targets themselves.
        targets: int [B, T]; positions equal to ``ignore_index`` are not scored.
        ignore_index: As in torch's cross-entropy.

    Returns:
        float64 [B, 3]: summed negative log-likelihood in nats, scored tokens, and tokens that were the likeliest; the
        last is NaN for log-probabilities [B, T], which don't tell.

    Raises:
        InvalidInputError: shapes that don't match, a target outside [0, V), NaN logits, a log-probability above 0.
    """
    wanted = _targets(targets)
    scored = wanted != ignore_index
    logits = logits if is_tensor(logits) else to_numpy(logits, "logits")
    shape = tuple(logits.shape)
    if shape == wanted.shape:
        nats = _from_log_probs(logits, scored)
        correct = np.full(len(wanted), np.nan)
    elif len(shape) == 3 and shape[:2] == wanted.shape:
        outside = scored & ((wanted < 0) | (wanted >= shape[2]))
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise InvalidInputError(
                f"targets[{row}, {column}] is {wanted[row, column]}: not a token of a vocabulary of {shape[2]}."
            )
        flat, hits = _row_scores(logits.reshape(-1, shape[2]), wanted.ravel(), scored.ravel())
        nats, correct = flat.reshape(wanted.shape), hits.reshape(wanted.shape).sum(1)
    else:
        raise InvalidInputError(
            f"logits must be [B, T, V] for targets {list(wanted.shape)}, got {list(shape)}; "
            "log-probabilities of the targets go in as [B, T]."
        )
    if np.isnan(nats).any():
        row = int(np.flatnonzero(np.isnan(nats).any(axis=1))[0])
        raise InvalidInputError(f"logits[{row}] holds NaN: the model gives no probability.")
    return np.column_stack([nats.sum(1), scored.sum(1), correct])


def _from_log_probs(log_probs: Any, scored: npt.NDArray[np.bool_]) -> FloatArray:
    nats: FloatArray = np.where(scored, -np.asarray(to_numpy(log_probs), np.float64), 0.0)
    if (nats < -1e-3).any():  # rounding of low precisions may lift a certain token a little above 0
        row, column = np.argwhere(nats < -1e-3)[0]
        raise InvalidInputError(
            f"The log-probability [{row}, {column}] is {-nats[row, column]:.4g}, above 0. Logits go in as [B, T, V]."
        )
    return np.maximum(nats, 0.0)


class _TokenMetric(SumMetric):
    """A function of sums over tokens, so that no batch size or padding changes it."""

    columns: ClassVar[int] = 3
    higher_is_better: ClassVar[bool] = False

    def __init__(self, *, ignore_index: int = -100) -> None:
        self.ignore_index = ignore_index

    @property
    def input_key(self) -> Hashable:
        """One pass over the logits serves all."""
        return ("tokens", self.ignore_index)

    @property
    def state_key(self) -> Hashable:
        """One state serves all."""
        return ("tokens", self.ignore_index)

    def read(self, predictions: Any, references: Any) -> FloatArray:
        """Return `score_sequences` of logits and target tokens."""
        return score_sequences(predictions, references, self.ignore_index)

    def _rows(self, batch: Any) -> FloatArray:
        return np.asarray(batch)

    def _from_rows(self, rows: FloatArray) -> float:
        if rows[:, 1].sum() == 0:
            raise InvalidInputError(f"{self.name} needs at least one scored token.")
        return super()._from_rows(rows)

    def _some(self, rows: FloatArray) -> FloatArray:
        if len(rows) == 0:
            raise InvalidInputError(f"{self.name} needs at least one scored token.")
        return rows

    def _unit(self, groups: npt.NDArray[np.int64] | None) -> str:
        return "sequences" if groups is None else f"{len(np.unique(groups))} groups of sequences"

    def _from_sums(self, sums: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._from_mean(np.asarray(sums[..., 0] / sums[..., 1]))

    @abstractmethod
    def _from_mean(self, nats_per_token: FloatArray) -> FloatArray:
        """Return what the subclass measures."""


@register("nll", task="language_modeling")
class NegativeLogLikelihood(_TokenMetric):
    """Mean negative log-likelihood per token, in nats."""

    def _from_mean(self, nats_per_token: FloatArray) -> FloatArray:
        return nats_per_token


@register("perplexity", task="language_modeling")
class Perplexity(_TokenMetric):
    """exp of the mean negative log-likelihood per token."""

    def _from_mean(self, nats_per_token: FloatArray) -> FloatArray:
        return np.exp(np.minimum(nats_per_token, 709.0))


@register("bits_per_byte", task="language_modeling")
class BitsPerByte(_TokenMetric):
    """Mean negative log-likelihood per byte of text, in bits.

    Args:
        bytes_per_token: Mean bytes of text per token; 1 for byte-level models.
        ignore_index: Targets not scored.
    """

    def __init__(self, *, bytes_per_token: float = 1.0, ignore_index: int = -100) -> None:
        super().__init__(ignore_index=ignore_index)
        if not 0 < bytes_per_token < math.inf:
            raise InvalidInputError(f"bytes_per_token must be above 0, got {bytes_per_token}.")
        self.bytes_per_token = bytes_per_token

    def _from_mean(self, nats_per_token: FloatArray) -> FloatArray:
        return nats_per_token / math.log(2) / self.bytes_per_token


@register("token_accuracy", task="language_modeling")
class TokenAccuracy(_TokenMetric):
    """Share of scored tokens that the model held likeliest. Needs logits [B, T, V]."""

    higher_is_better: ClassVar[bool] = True
    example_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def _from_rows(self, rows: FloatArray) -> float:
        if np.isnan(rows[:, 2]).any():
            raise InvalidInputError("token_accuracy needs logits [B, T, V]: log-probabilities [B, T] don't tell.")
        return super()._from_rows(rows)

    def _from_sums(self, sums: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(sums[..., 2] / sums[..., 1])

    def _from_mean(self, nats_per_token: FloatArray) -> FloatArray:
        raise NotImplementedError("token accuracy isn't a function of the likelihood")
