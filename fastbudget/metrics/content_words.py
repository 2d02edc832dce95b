"""What texts say and how varied they are: overlap in content words, distinct n-grams."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from typing import Any, ClassVar

import numpy as np

from ..core.errors import InvalidInputError
from ._native import porter_stem
from .example_rows import check_ids
from .metric_protocol import BatchMetric, FloatArray, MetricValue
from .registered import register
from .resampling import resampled_rows_interval
from .row_metrics import MeanMetric
from .text_batches import TextBatch, TextMetric, as_list, f_score
from .tokenizers import check_tokenizer, prepared

_WORD = re.compile("[a-z0-9\x80-\U0010ffff]+")
_STOP_WORDS = frozenset(
    """
    a about above after again against all am an and any are as at be because been before being below between both but
    by can could did do does doing down during each few for from further had has have having he her here hers herself
    him himself his how i if in into is it its itself just me more most my myself no nor not now of off on once only
    or other our ours ourselves out over own s same she should so some such t than that the their theirs them
    themselves then there these they this those through to too under until up very was we were what when where which
    while who whom why will with would you your yours yourself yourselves
    """.split()  # noqa: SIM905
)


def words(texts: list[str]) -> list[list[str]]:
    """Return each text's words under the ``auto`` tokenizer."""
    return [_WORD.findall(text.lower()) for text in prepared(texts, "auto")]


@register("content_overlap", task="summarization")
class ContentOverlap(TextMetric, MeanMetric):
    """Mean F1 of the content words that prediction and reference share: stems, without English function words.

    Order doesn't count, repetition does. Two texts without content words agree. The best reference counts.
    """

    example_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def _rows(self, batch: TextBatch) -> FloatArray:
        pairs = batch.pairs()
        scores = np.array(
            [_overlap(a, b) for a, b in zip(_content(pairs.predictions), _content(pairs.references), strict=True)],
            np.float64,
        )
        return np.asarray(scores[batch.best(scores)][:, None])


def _content(texts: list[str]) -> list[Counter[str]]:
    return [
        Counter(porter_stem(word) if word.isascii() else word for word in text if word not in _STOP_WORDS)
        for text in words(texts)
    ]


def _overlap(predicted: Counter[str], wanted: Counter[str]) -> float:
    if not predicted and not wanted:
        return 1.0
    shared = (predicted & wanted).total()
    sides = (np.array(shared / max(side.total(), 1)) for side in (predicted, wanted))
    return float(f_score(*sides))


class NgramsOfTexts:
    """The n-grams of each text, in the order they were added."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, ...]] = []
        self.ids: list[Any] = []


@register("distinct_n", task="text_generation")
class DistinctN(BatchMetric[NgramsOfTexts]):
    """Different n-grams over all n-grams of the predictions; references are not looked at and may be None.

    Falls with the number of texts: compare sets of one size only. Source: J. Li et al., "A Diversity-Promoting
    Objective Function for Neural Conversation Models", NAACL 2016.

    Args:
        n: Length of the n-grams.
        tokenizer: ``"auto"`` or ``"whitespace"``; see `tokenizers`.
    """

    example_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def __init__(self, *, n: int = 2, tokenizer: str = "auto") -> None:
        if n < 1:
            raise InvalidInputError(f"n must be at least 1, got {n}.")
        self.n = n
        self.tokenizer = check_tokenizer(tokenizer, ("auto", "whitespace"))

    @property
    def input_key(self) -> Hashable:
        """Read by itself: no references are needed."""
        return ("predicted texts", self.n, self.tokenizer)

    def init(self) -> NgramsOfTexts:
        """Return the state of no texts."""
        return NgramsOfTexts()

    def read(self, predictions: Any, references: Any) -> list[tuple[str, ...]]:
        """Return each text's n-grams."""
        texts = as_list(predictions, "predictions")
        batch = TextBatch.of(texts, texts)
        cut = words(batch.predictions) if self.tokenizer == "auto" else [text.split() for text in batch.predictions]
        return [tuple(" ".join(text[i : i + self.n]) for i in range(len(text) - self.n + 1)) for text in cut]

    def add(self, state: NgramsOfTexts, batch: Any, ids: Any = None) -> NgramsOfTexts:
        """Add n-grams from `read`."""
        known = [None] * len(batch) if ids is None else check_ids(ids, len(batch)).tolist()
        state.texts += batch
        state.ids += known
        return state

    def merge(self, a: NgramsOfTexts, b: NgramsOfTexts) -> NgramsOfTexts:
        """Return the texts of both."""
        merged = NgramsOfTexts()
        merged.texts, merged.ids = a.texts + b.texts, a.ids + b.ids
        return merged

    def result(self, state: NgramsOfTexts) -> float:
        """Return the share; of texts too short for any n-gram it is 0."""
        return self._share(self._each_once(state))

    def interval(self, state: NgramsOfTexts, confidence: float = 0.95, groups: Any = None) -> MetricValue:
        """Return the share with a bootstrap interval over texts; repeats in resamples make its low end too low."""
        texts = self._each_once(state)
        value = self._share(texts)
        indices = np.arange(len(texts))
        low, high = resampled_rows_interval(
            indices, lambda drawn: self._share([texts[i] for i in drawn]), value, groups=groups, confidence=confidence
        )
        method = "bootstrap over examples (approximate)"
        return MetricValue(
            value=value, low=low, high=high, confidence=confidence, method=method, num_examples=len(texts)
        )

    def per_example(self, predictions: Any, references: Any) -> FloatArray:
        """Return each text's own share, float64 [n]."""
        return np.array([self._share([text]) for text in self.read(predictions, references)], np.float64)

    def _share(self, texts: list[tuple[str, ...]]) -> float:
        return len({gram for text in texts for gram in text}) / max(1, sum(map(len, texts)))

    def _each_once(self, state: NgramsOfTexts) -> list[tuple[str, ...]]:
        seen: dict[Any, tuple[str, ...]] = {}
        kept = []
        for known, text in zip(state.ids, state.texts, strict=True):
            if known is None or known not in seen:
                kept.append(text)
            elif seen[known] != text:
                raise InvalidInputError(f"The example with id {known!r} came twice, with different texts.")
            if known is not None:
                seen[known] = text
        if not kept:
            raise InvalidInputError(f"{self.name or 'The metric'} needs at least one example.")
        return kept
