"""Word and character error rates, and edit distance: Levenshtein's, by bit-parallel columns."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from . import _native
from .metric_protocol import FloatArray
from .registered import register
from .row_metrics import MeanMetric, SumMetric
from .text_batches import TextBatch, TextMetric
from .tokenizers import check_tokenizer

_TOKENIZERS = ("whitespace", "characters", "auto", "ink")


def _edits_and_lengths(batch: TextBatch, tokenizer: str, threads: int | None) -> tuple[Any, Any]:
    """Return edits to, and tokens of, the reference that needs least edits per token, int64 [n] each."""
    tokens = batch.pairs().tokens(tokenizer, threads=threads)
    edits, lengths = _native.edit_distances(tokens, threads), np.diff(tokens.references)
    best = batch.best(-edits / np.maximum(lengths, 1))
    return edits[best], lengths[best]


class _ErrorRate(TextMetric, SumMetric):
    """Edits over all references' tokens. May exceed 1; a lone empty reference counts as one token long.

    Args:
        tokenizer: What is counted; see `tokenizers`.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    higher_is_better: ClassVar[bool] = False

    def __init__(self, *, tokenizer: str, threads: int | None = None) -> None:
        self.tokenizer = check_tokenizer(tokenizer, _TOKENIZERS)
        self.threads = threads

    def _rows(self, batch: TextBatch) -> FloatArray:
        return np.column_stack(_edits_and_lengths(batch, self.tokenizer, self.threads)).astype(np.float64)

    def _from_sums(self, sums: FloatArray) -> FloatArray:
        return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1))


@register("wer", task="speech_recognition")
class WordErrorRate(_ErrorRate):
    """Word error rate: substituted, deleted and inserted words per word of the references.

    Case and punctuation count; lowercase and strip texts first where they shouldn't. Scripts without spaces need
    ``tokenizer="auto"``, or `cer`.

    Args:
        tokenizer: ``"whitespace"``, or ``"auto"``; see `tokenizers`.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    def __init__(self, *, tokenizer: str = "whitespace", threads: int | None = None) -> None:
        super().__init__(tokenizer=tokenizer, threads=threads)


@register("cer", task="speech_recognition")
class CharacterErrorRate(_ErrorRate):
    """Character error rate: substituted, deleted and inserted code points per code point of the references.

    Args:
        tokenizer: ``"characters"``, or ``"ink"`` to leave whitespace out.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    def __init__(self, *, tokenizer: str = "characters", threads: int | None = None) -> None:
        super().__init__(tokenizer=tokenizer, threads=threads)


@register("edit_distance", task="text_generation")
class EditDistance(TextMetric, MeanMetric):
    """Mean Levenshtein distance; of several references that with the least edits per token counts.

    Args:
        tokenizer: ``"characters"`` (code points), or words; see `tokenizers`.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    higher_is_better: ClassVar[bool] = False

    def __init__(self, *, tokenizer: str = "characters", threads: int | None = None) -> None:
        self.tokenizer = check_tokenizer(tokenizer, _TOKENIZERS)
        self.threads = threads

    def _rows(self, batch: TextBatch) -> FloatArray:
        return np.asarray(_edits_and_lengths(batch, self.tokenizer, self.threads)[0][:, None], np.float64)
