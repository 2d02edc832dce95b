"""ROUGE: overlap of a text with its reference in n-grams and common subsequences.

Source: C.-Y. Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", ACL 2004 workshop; details (tokens, ties,
sentences) as in the package rouge-score 0.1.2, which the scores equal.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, one_of
from . import _native
from .metric_protocol import FloatArray
from .registered import register
from .row_metrics import MeanMetric
from .text_batches import TextBatch, TextMetric, f_score
from .tokenizers import announce, check_tokenizer, without_spaces

Measure = Literal["f1", "precision", "recall"]


class RougeMetric(TextMetric, MeanMetric):
    """Mean over examples; of several references the one with the best F1 counts. Empty texts score 0.

    Args:
        stemmer: Compare Porter stems of words of more than three letters.
        tokenizer: See `tokenizers`; ``"auto"`` equals rouge-score on ASCII text and reads all other scripts too.
        measure: ``"f1"``, ``"precision"`` or ``"recall"``.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    example_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def __init__(
        self,
        *,
        stemmer: bool = False,
        tokenizer: str = "auto",
        measure: Measure = "f1",
        threads: int | None = None,
    ) -> None:
        if measure not in get_args(Measure):
            raise InvalidInputError(f"measure must be one of {one_of(get_args(Measure))}, got {measure!r}.")
        self.stemmer = stemmer
        self.tokenizer = check_tokenizer(tokenizer, ("auto", "rouge_score", "whitespace", "characters", "ink"))
        self.measure = measure
        self.threads = threads

    @abstractmethod
    def _counts(self, batch: TextBatch) -> tuple[Any, Any, Any]:
        """Return what matches, what the predictions have and what the references have, per pair."""

    def _rows(self, batch: TextBatch) -> FloatArray:
        if self.tokenizer == "auto" and without_spaces(batch.references):
            announce(
                self,
                "these texts hold a script without spaces between words: there every character counts as a word "
                "(tokenizer='auto', in the signature).",
            )
        matches, predicted, wanted = (np.asarray(count, np.float64) for count in self._counts(batch.pairs()))
        precision, recall = matches / np.maximum(predicted, 1), matches / np.maximum(wanted, 1)
        scores = {"precision": precision, "recall": recall, "f1": f_score(precision, recall)}
        return np.asarray(scores[self.measure][batch.best(scores["f1"])][:, None])


class RougeN(RougeMetric):
    """Overlap in n-grams.

    Args:
        n: Length of the n-grams.
        stemmer: See `RougeMetric`.
        tokenizer: See `RougeMetric`.
        measure: See `RougeMetric`.
        threads: See `RougeMetric`.
    """

    def __init__(
        self,
        *,
        n: int,
        stemmer: bool = False,
        tokenizer: str = "auto",
        measure: Measure = "f1",
        threads: int | None = None,
    ) -> None:
        super().__init__(stemmer=stemmer, tokenizer=tokenizer, measure=measure, threads=threads)
        self.n = n

    def _counts(self, batch: TextBatch) -> tuple[Any, Any, Any]:
        tokens = batch.tokens(self.tokenizer, stem=self.stemmer, threads=self.threads)
        counts = _native.ngram_overlap(tokens, self.n, self.threads)[:, -1]
        return counts[:, 2], counts[:, 0], counts[:, 1]


@register("rougeL", task="summarization")
class RougeL(RougeMetric):
    """Overlap in the longest common subsequence of the whole texts."""

    def _counts(self, batch: TextBatch) -> tuple[Any, Any, Any]:
        tokens = batch.tokens(self.tokenizer, stem=self.stemmer, threads=self.threads)
        lengths = _native.common_subsequences(tokens, self.threads)
        return lengths, np.diff(tokens.hypotheses), np.diff(tokens.references)


@register("rougeLsum", task="summarization")
class RougeLsum(RougeMetric):
    """Overlap in common subsequences of sentences, which stand on lines of their own."""

    def _counts(self, batch: TextBatch) -> tuple[Any, Any, Any]:
        predicted, predicted_ends = _lines(batch.predictions)
        wanted, wanted_ends = _lines(batch.references)
        lines = TextBatch(predicted, wanted, np.zeros(len(predicted) + 1, np.int64))
        tokens = lines.tokens(self.tokenizer, stem=self.stemmer, threads=self.threads)
        hits = _native.union_subsequences(tokens, predicted_ends, wanted_ends, self.threads)
        return hits, np.diff(tokens.hypotheses[predicted_ends]), np.diff(tokens.references[wanted_ends])


def _lines(texts: list[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return all lines, and where each text's begin and end, int64 [n + 1]."""
    lines = [text.split("\n") for text in texts]
    return [line for text in lines for line in text], np.cumsum([0, *map(len, lines)], dtype=np.int64)


def _register_orders() -> None:
    for order in (1, 2, 3, 4):

        def make(*, _order: int = order, **options: Any) -> RougeN:
            return RougeN(n=_order, **options)

        register(f"rouge{order}", task="summarization")(make)


_register_orders()
