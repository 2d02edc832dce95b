"""METEOR: words aligned by form, stem and, where WordNet is there, meaning."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..core.errors import InvalidInputError, MissingExtraError
from . import _native
from .metric_protocol import FloatArray
from .registered import register
from .row_metrics import MeanMetric
from .text_batches import TextBatch, TextMetric
from .tokenizers import check_tokenizer, prepared


@register("meteor", task="text_generation")
class Meteor(TextMetric, MeanMetric):
    """Mean over examples of METEOR as NLTK computes it; of several references the best counts. Empty texts score 0.

    Source: S. Banerjee and A. Lavie, "METEOR: An Automatic Metric for MT Evaluation with Improved Correlation with
    Human Judgments", ACL 2005 workshop.

    Args:
        alpha: Weight of recall in the mean of precision and recall.
        beta: Exponent of the penalty for scattered matches.
        gamma: Weight of that penalty.
        wordnet: Match synonyms too, after forms and stems, by nltk and its WordNet data.
        tokenizer: See `tokenizers`.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    example_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)

    def __init__(
        self,
        *,
        alpha: float = 0.9,
        beta: float = 3.0,
        gamma: float = 0.5,
        wordnet: bool = False,
        tokenizer: str = "auto",
        threads: int | None = None,
    ) -> None:
        if not (0 < alpha < 1 and beta >= 0 and 0 <= gamma <= 1):
            raise InvalidInputError("METEOR needs 0 < alpha < 1, beta >= 0 and 0 <= gamma <= 1.")
        self.alpha = alpha
        self.beta = beta
        self.gamma = gamma
        self.wordnet = wordnet
        self.tokenizer = check_tokenizer(tokenizer, ("auto", "rouge_score", "whitespace"))
        self.threads = threads
        self._nltk = _wordnet_scorer() if wordnet else None

    @property
    def signature(self) -> str:
        """As for every metric, with the modules that match words."""
        return super().signature + f"|modules:exact+stem{'+synonym' if self.wordnet else ''}"

    def _rows(self, batch: TextBatch) -> FloatArray:
        pairs = batch.pairs()
        scores = self._with_wordnet(pairs) if self._nltk else self._scores(pairs)
        return np.asarray(scores[batch.best(scores)][:, None])

    def _scores(self, pairs: TextBatch) -> FloatArray:
        prepare = lambda texts: [text.lower() for text in prepared(texts, self.tokenizer)]  # noqa: E731
        rule = "whitespace" if self.tokenizer == "whitespace" else "words"
        if self.tokenizer == "rouge_score":
            rule = "alphanumeric"
        words = pairs.tokens_by(("meteor", rule), prepare, rule, True, threads=self.threads)
        stems = pairs.tokens_by(
            ("meteor stems", rule), prepare, rule, True, stem=True, stem_above=0, threads=self.threads
        )
        matches, chunks = _native.meteor_alignments(words, stems.ids, self.threads).astype(np.float64).T
        precision = matches / np.maximum(np.diff(words.hypotheses), 1)
        recall = matches / np.maximum(np.diff(words.references), 1)
        below = self.alpha * precision + (1 - self.alpha) * recall
        mean = np.divide(precision * recall, below, out=np.zeros_like(below), where=below > 0)
        return np.asarray((1 - self.gamma * (chunks / np.maximum(matches, 1)) ** self.beta) * mean)

    def _with_wordnet(self, pairs: TextBatch) -> FloatArray:
        assert self._nltk is not None
        sides = [
            [text.lower().split() for text in prepared(s, self.tokenizer)]
            for s in (pairs.predictions, pairs.references)
        ]
        options = {"alpha": self.alpha, "beta": self.beta, "gamma": self.gamma}
        return np.array([self._nltk(b, a, **options) for a, b in zip(*sides, strict=True)], np.float64)


def _wordnet_scorer() -> Any:
    try:
        from nltk.corpus import wordnet
        from nltk.translate.meteor_score import single_meteor_score

        wordnet.ensure_loaded()
    except ImportError as error:
        raise MissingExtraError(f"METEOR with synonyms needs nltk: pip install nltk ({error}).") from error
    except LookupError as error:
        raise MissingExtraError(
            "METEOR with synonyms needs WordNet's data: python -m nltk.downloader wordnet. Or use wordnet=False."
        ) from error
    return single_meteor_score
