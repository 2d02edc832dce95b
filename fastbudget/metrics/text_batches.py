"""Texts as users hold them, read once and tokenized once for all metrics that look at them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from . import _native
from ._native import Counts, TokenPairs
from .metric_protocol import FloatArray
from .row_metrics import RowMetric
from .tokenizers import are_ascii, native_rule, prepared


def as_list(values: Any, name: str) -> list[Any]:
    """Return the entries of a list, a numpy array or a column of pandas, pyarrow or Hugging Face datasets."""
    if isinstance(values, str | bytes):
        raise InvalidInputError(f"{name} must be a list of texts, got one text; write [{name}].")
    if values is None or isinstance(values, dict | set):
        raise InvalidInputError(f"{name} must be a list of texts, got {type(values).__name__}.")
    for method in ("to_pylist", "tolist"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    try:
        return list(values)
    except TypeError:
        raise InvalidInputError(f"{name} must be a list of texts, got {type(values).__name__}.") from None


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(f"{place} must be a text, got {value!r} ({type(value).__name__}).")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(
                f"{place} isn't valid Unicode ({error.reason}); decode it with errors='replace'."
            ) from None
    return value


def _are_plain(values: list[Any]) -> bool:
    """Whether all are texts in ASCII, which need no look at each."""
    return set(map(type, values)) == {str} and are_ascii(values)


class TextBatch:
    """Predicted texts, each with one reference or more.

    Attributes:
        predictions: n texts.
        references: All references, one after the other.
        first_reference: int64 [n + 1]: prediction d has references[first_reference[d]:first_reference[d + 1]].
    """

    def __init__(self, predictions: list[str], references: list[str], first_reference: Counts) -> None:
        self.predictions = predictions
        self.references = references
        self.first_reference = first_reference
        self._tokens: dict[Hashable, TokenPairs] = {}
        self._pairs: TextBatch | None = None

    @classmethod
    def of(cls, predictions: Any, references: Any) -> TextBatch:
        """Return checked texts; references are one text each, or a list of one or more each.

        Raises:
            InvalidInputError: something isn't a text, or the numbers don't match (transposed references, say).
        """
        predicted, wanted = as_list(predictions, "predictions"), as_list(references, "references")
        if len(predicted) != len(wanted):
            hint = ""
            if wanted and all(isinstance(entry, list | tuple) and len(entry) == len(predicted) for entry in wanted):
                hint = " They look transposed: references[i] must hold the references of predictions[i]."
            raise InvalidInputError(
                f"predictions and references must have the same length, got {len(predicted)} and {len(wanted)}.{hint}"
            )
        if _are_plain(predicted) and _are_plain(wanted):
            return cls(predicted, wanted, np.arange(len(wanted) + 1))
        texts = [_text(entry, f"predictions[{i}]") for i, entry in enumerate(predicted)]
        flat: list[str] = []
        first = [0]
        for i, entry in enumerate(wanted):
            if isinstance(entry, str):
                flat.append(entry)
            else:
                several = as_list(entry, f"references[{i}]") if entry is not None else [entry]
                if not several:
                    raise InvalidInputError(f"references[{i}] is an empty list; every prediction needs a reference.")
                flat.extend(_text(text, f"references[{i}][{j}]") for j, text in enumerate(several))
            first.append(len(flat))
        return cls(texts, flat, np.array(first, np.int64))

    def __len__(self) -> int:
        return len(self.predictions)

    def pairs(self) -> TextBatch:
        """Return every prediction with each of its references; itself if there is one each."""
        if len(self.references) == len(self.predictions):
            return self
        if self._pairs is None:
            each = np.repeat(np.arange(len(self)), np.diff(self.first_reference))
            texts = [self.predictions[d] for d in each]
            self._pairs = TextBatch(texts, self.references, np.arange(len(texts) + 1))
        return self._pairs

    def best(self, scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return for each prediction the pair (of `pairs`) of the highest score [pairs], the first of equals."""
        first = self.first_reference
        if len(self.references) == len(self):
            return np.arange(len(self))
        return np.array([a + int(np.argmax(scores[a:b])) for a, b in itertools.pairwise(first)], np.int64)

    def tokens(self, tokenizer: str, *, stem: bool = False, threads: int | None = None) -> TokenPairs:
        """Return token ids of predictions and references, made once per tokenizer."""
        return self.tokens_by(
            (tokenizer, stem),
            lambda texts: prepared(texts, tokenizer),
            *native_rule(tokenizer),
            stem=stem,
            threads=threads,
        )

    def tokens_by(
        self,
        key: Hashable,
        prepare: Callable[[list[str]], list[str]],
        rule: str,
        lowercase: bool = False,
        *,
        stem: bool = False,
        stem_above: int = 3,
        threads: int | None = None,
    ) -> TokenPairs:
        """Return token ids of prepared texts under a native rule, made once per key."""
        if key not in self._tokens:
            texts = prepare(self.predictions + self.references)
            ids, offsets = _native.tokenize(
                texts, rule, lowercase=lowercase, stem=stem, stem_above=stem_above, threads=threads
            )
            n = len(self)
            self._tokens[key] = TokenPairs(ids, offsets[: n + 1].copy(), offsets[n:].copy(), self.first_reference)
        return self._tokens[key]


class TextMetric(RowMetric):
    """A metric of texts: predictions are n texts, references one text each or a list of several each."""

    threads: int | None = None

    @property
    def input_key(self) -> Hashable:
        """All metrics of texts read them the same."""
        return "texts"

    def read(self, predictions: Any, references: Any) -> TextBatch:
        """Return the checked texts."""
        return TextBatch.of(predictions, references)


def f_score(precision: FloatArray, recall: FloatArray) -> FloatArray:
    """Return the harmonic mean, 0 where both are 0."""
    total = precision + recall
    return np.asarray(np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0))
