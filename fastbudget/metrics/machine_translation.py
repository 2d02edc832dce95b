"""BLEU and chrF, equal to sacrebleu's to rounding; values are shares of 1 where sacrebleu gives percentages.

Sources: K. Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine Translation", ACL 2002; M. Popović,
"chrF: character n-gram F-score for automatic MT evaluation", WMT 2015; M. Post, "A Call for Clarity in Reporting BLEU
Scores", WMT 2018, for tokens and signatures.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ..core.errors import InvalidInputError, one_of
from . import _native
from .example_rows import ExampleRows
from .metric_protocol import FloatArray
from .registered import register
from .row_metrics import SumMetric
from .text_batches import TextBatch, TextMetric
from .tokenizers import TOKENIZERS, announce, sacrebleu_tokenizer, without_spaces

# The release whose scores are reproduced; it stands in the signature as sacrebleu writes it.
SACREBLEU_VERSION = "2.6.0"

Smoothing = Literal["exp", "floor", "add-k", "none"]
_SMOOTH_VALUES = {"floor": 0.1, "add-k": 1.0}
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


class _SacrebleuMetric(TextMetric, SumMetric):
    example_range: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    _references_seen: int | None = None

    def init(self) -> ExampleRows:
        """Return the state of no examples."""
        self._references_seen = None
        return super().init()

    def read(self, predictions: Any, references: Any) -> TextBatch:
        """Return the checked texts, and note how many references there are for the signature."""
        batch = super().read(predictions, references)
        numbers = {
            *np.diff(batch.first_reference).tolist(),
            *([self._references_seen] if self._references_seen else []),
        }
        if numbers:
            self._references_seen = numbers.pop() if len(numbers) == 1 else -1
        return batch

    def _signature(self, *options: str) -> str:
        seen = {None: "1", -1: "var"}.get(self._references_seen, str(self._references_seen))
        return "|".join([f"nrefs:{seen}", *options, f"version:{SACREBLEU_VERSION}"])


@register("bleu", task="text_generation")
class Bleu(_SacrebleuMetric):
    """Corpus BLEU.

    Args:
        tokenizer: One of sacrebleu's: ``"13a"`` and ``"none"`` are native; ``"zh"``, ``"intl"``, ``"char"``, … call it.
        lowercase: Ignore case.
        smoothing: ``"exp"``, ``"floor"``, ``"add-k"`` or ``"none"``.
        smooth_value: Of ``"floor"`` (default 0.1) and ``"add-k"`` (default 1).
        max_order: Longest n-grams.
        effective_order: Leave out orders that the predictions are too short for. Wise for single sentences: without
            it, texts of fewer than ``max_order`` tokens score 0.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    def __init__(
        self,
        *,
        tokenizer: str = "13a",
        lowercase: bool = False,
        smoothing: Smoothing = "exp",
        smooth_value: float | None = None,
        max_order: int = 4,
        effective_order: bool = False,
        threads: int | None = None,
    ) -> None:
        if smoothing not in get_args(Smoothing):
            raise InvalidInputError(f"smoothing must be one of {one_of(get_args(Smoothing))}, got {smoothing!r}.")
        if max_order < 1:
            raise InvalidInputError(f"max_order must be at least 1, got {max_order}.")
        if tokenizer not in TOKENIZERS:
            sacrebleu_tokenizer(tokenizer)
        self.tokenizer = tokenizer
        self.lowercase = lowercase
        self.smoothing = smoothing
        self.smooth_value = _SMOOTH_VALUES.get(smoothing) if smooth_value is None else smooth_value
        self.max_order = max_order
        self.effective_order = effective_order
        self.threads = threads

    @property
    def signature(self) -> str:
        """sacrebleu's signature string; the number of references is the one seen so far, at first 1."""
        smooth = self.smoothing + ("" if self.smooth_value is None else f"[{self.smooth_value:.2f}]")
        return self._signature(
            f"case:{'lc' if self.lowercase else 'mixed'}",
            f"eff:{'yes' if self.effective_order else 'no'}",
            f"tok:{self.tokenizer}",
            f"smooth:{smooth}",
        )

    def _rows(self, batch: TextBatch) -> FloatArray:
        if self.tokenizer in ("13a", "none") and without_spaces(batch.references):
            announce(
                self,
                f"these texts hold a script without spaces, which tokenizer={self.tokenizer!r} leaves uncut; "
                "choose tokenizer='zh' or 'char'.",
            )
        if self.lowercase:
            lowered = [[text.lower() for text in side] for side in (batch.predictions, batch.references)]
            batch = TextBatch(lowered[0], lowered[1], batch.first_reference)
        tokens = batch.tokens(self.tokenizer, threads=self.threads)
        counts = _native.ngram_overlap(tokens, self.max_order, self.threads)
        lengths = np.diff(tokens.hypotheses)
        closest = _closest(lengths, np.diff(tokens.references), batch.first_reference)
        return np.column_stack([lengths, closest, counts[:, :, 2], counts[:, :, 0]]).astype(np.float64)

    def _from_sums(self, sums: FloatArray) -> FloatArray:
        length, reference = sums[..., 0], sums[..., 1]
        correct, total = (sums[..., 2 + side : 2 + side + self.max_order].copy() for side in (0, self.max_order))
        matched = correct.any(-1)
        if self.smoothing == "add-k":
            correct[..., 1:] += self.smooth_value or 0.0
            total[..., 1:] += self.smooth_value or 0.0
        logs = np.zeros(length.shape)
        order = np.full(length.shape, self.max_order)
        halved = np.ones(length.shape)
        defined = np.ones(length.shape, bool)  # until the first order that the predictions are too short for
        zero = np.zeros(length.shape, bool)
        with np.errstate(divide="ignore", invalid="ignore"):
            for n in range(self.max_order):
                hits, possible = correct[..., n], total[..., n]
                defined = defined & (possible > 0)
                missed = defined & (hits == 0)
                if self.smoothing == "exp":
                    halved = np.where(missed, 2 * halved, halved)
                    hits = np.where(missed, 1 / halved, hits)
                elif self.smoothing == "floor":
                    hits = np.where(missed, self.smooth_value or 0.0, hits)
                if self.effective_order:
                    order = np.where(defined, n + 1, order)
                counted = defined if self.effective_order else np.ones_like(defined)
                share = np.where(defined, hits / possible, 0.0)
                zero = zero | (counted & (share <= 0))
                logs = logs + np.where(counted & (share > 0), np.log(share), 0.0)
            brevity = np.where(length < reference, np.where(length > 0, np.exp(1 - reference / length), 0.0), 1.0)
        return np.asarray(np.where(matched & ~zero, brevity * np.exp(logs / order), 0.0))


def _closest(lengths: Any, references: Any, first: Any) -> Any:
    """Return for each length that of the closest reference, the shorter of two."""
    if len(references) == len(lengths):
        return references
    groups = (references[a:b].tolist() for a, b in itertools.pairwise(first))
    return [min(group, key=lambda r: (abs(r - n), r)) for n, group in zip(lengths.tolist(), groups, strict=True)]


@register("chrf", task="text_generation")
class Chrf(_SacrebleuMetric):
    """Corpus chrF; with ``word_order=2`` chrF++. Of several references the best one counts, sentence by sentence.

    Args:
        char_order: Longest character n-grams.
        word_order: Longest word n-grams.
        beta: Weight of recall.
        lowercase: Ignore case.
        whitespace: Keep whitespace in character n-grams.
        eps_smoothing: Average F over all orders, as chrF++.py, NLTK and Moses do, instead of those that occur.
        threads: Native threads; None: all, or OMP_NUM_THREADS.
    """

    def __init__(
        self,
        *,
        char_order: int = 6,
        word_order: int = 0,
        beta: float = 2,
        lowercase: bool = False,
        whitespace: bool = False,
        eps_smoothing: bool = False,
        threads: int | None = None,
    ) -> None:
        if char_order < 1 or word_order < 0 or not beta > 0:
            raise InvalidInputError("chrF needs char_order >= 1, word_order >= 0 and beta > 0.")
        self.char_order = char_order
        self.word_order = word_order
        self.beta = beta
        self.lowercase = lowercase
        self.whitespace = whitespace
        self.eps_smoothing = eps_smoothing
        self.threads = threads

    @property
    def signature(self) -> str:
        """sacrebleu's signature string; the number of references is the one seen so far, at first 1."""
        return self._signature(
            f"case:{'lc' if self.lowercase else 'mixed'}",
            f"eff:{'no' if self.eps_smoothing else 'yes'}",
            f"nc:{self.char_order}",
            f"nw:{self.word_order}",
            f"space:{'yes' if self.whitespace else 'no'}",
        )

    def _rows(self, batch: TextBatch) -> FloatArray:
        pairs = batch.pairs()
        lowered = (lambda texts: [text.lower() for text in texts]) if self.lowercase else (lambda texts: texts)
        rule = "characters" if self.whitespace else "ink"
        characters = pairs.tokens_by((rule, self.lowercase), lowered, rule, threads=self.threads)
        counts = [_native.ngram_overlap(characters, self.char_order, self.threads)]
        if self.word_order:
            words = pairs.tokens_by(
                ("chrf words", self.lowercase),
                lambda texts: [_words(text) for text in lowered(texts)],
                "whitespace",
                threads=self.threads,
            )
            counts.append(_native.ngram_overlap(words, self.word_order, self.threads))
        each = np.concatenate(counts, axis=1).astype(np.float64)
        each[each[..., 1] == 0, 0] = 0  # n-grams that the reference is too short for aren't held against the prediction
        rows = each.reshape(len(each), 3 * (self.char_order + self.word_order))
        return np.asarray(rows[batch.best(self._from_sums(np.column_stack([rows, np.ones(len(rows))])))])

    def _from_sums(self, sums: FloatArray) -> FloatArray:
        counts = sums[..., :-1].reshape(*sums.shape[:-1], self.char_order + self.word_order, 3)
        predicted, wanted, matched = (counts[..., i] for i in range(3))
        tiny = 1e-16
        precision = np.divide(matched, predicted, out=np.full(matched.shape, tiny), where=predicted > 0)
        recall = np.divide(matched, wanted, out=np.full(matched.shape, tiny), where=wanted > 0)
        factor = self.beta**2
        if self.eps_smoothing:
            return np.asarray(_f(precision, recall, factor, tiny).mean(-1))
        both = (predicted > 0) & (wanted > 0)
        orders = np.maximum(both.sum(-1), 1)
        return _f((precision * both).sum(-1) / orders, (recall * both).sum(-1) / orders, factor, 0.0)


def _f(precision: FloatArray, recall: FloatArray, factor: float, undefined: float) -> FloatArray:
    below = factor * precision + recall
    value = np.full(below.shape, undefined)
    np.divide((1 + factor) * precision * recall, below, out=value, where=below > 0)
    return value


def _words(text: str) -> str:
    """Words with a punctuation mark at their end, or else at their beginning, cut off."""
    words: list[str] = []
    for word in text.split():
        if len(word) > 1 and word[-1] in _PUNCTUATION:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in _PUNCTUATION:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return " ".join(words)
