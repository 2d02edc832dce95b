"""SQuAD's exact match and token F1.

Source: P. Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP 2016, and the official
evaluation script of SQuAD 2.0.
"""

from __future__ import annotations

import re
import string
from typing import ClassVar

import numpy as np

from . import _native
from .metric_protocol import FloatArray
from .registered import register
from .row_metrics import MeanMetric
from .text_batches import TextBatch, TextMetric, f_score
from .tokenizers import _spaced, without_spaces

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized_answer(text: str) -> str:
    """Return the answer as SQuAD compares it: lowercase, without ASCII punctuation, articles and needless space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _words(texts: list[str]) -> list[str]:
    normalized = [normalized_answer(text) for text in texts]
    return [_spaced(text) if without_spaces([text]) else text for text in normalized]


@register("exact_match", task="question_answering")
class ExactMatch(TextMetric, MeanMetric):
    """Share of predictions that equal a reference after SQuAD's normalization.

    Args:
        normalize: False compares texts as they are.
    """

    example_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def __init__(self, *, normalize: bool = True) -> None:
        self.normalize = normalize

    def _rows(self, batch: TextBatch) -> FloatArray:
        pairs = batch.pairs()
        prepare = normalized_answer if self.normalize else str
        texts = zip(pairs.predictions, pairs.references, strict=True)
        equal = np.array([prepare(a) == prepare(b) for a, b in texts], np.float64)
        return np.asarray(equal[batch.best(equal)][:, None])


@register("token_f1", task="question_answering")
class TokenF1(TextMetric, MeanMetric):
    """Mean F1 of the words that prediction and reference share after SQuAD's normalization; the best reference counts.

    Two texts without words agree. Scripts without spaces are cut into characters, unlike in SQuAD's script.

    Args:
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    example_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads

    def _rows(self, batch: TextBatch) -> FloatArray:
        pairs = batch.pairs()
        tokens = pairs.tokens_by("squad", _words, "whitespace", threads=self.threads)
        counts = _native.ngram_overlap(tokens, 1, self.threads)[:, 0].astype(np.float64)
        predicted, wanted, shared = counts.T
        scores = f_score(shared / np.maximum(predicted, 1), shared / np.maximum(wanted, 1))
        scores = np.where((predicted == 0) & (wanted == 0), 1.0, scores)
        return np.asarray(scores[batch.best(scores)][:, None])
