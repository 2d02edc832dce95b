"""The one door of this room to the compiled module: arrays and texts in, counts out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, not_compiled

try:
    from .. import _C
except ImportError as error:
    raise not_compiled(error) from error

Counts = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]


class TokenPairs(NamedTuple):
    """Hypothesis d is ids[hypotheses[d]:hypotheses[d + 1]]; its references are those from first_reference[d] on."""

    ids: npt.NDArray[np.int32]
    hypotheses: Counts
    references: Counts
    first_reference: Counts


def _refuse(error: IndexError, num_classes: int) -> InvalidInputError:
    return InvalidInputError(f"Class labels must be in [0, {num_classes}): {error}. Check num_classes and the data.")


def count_classes(
    predictions: Labels, references: Labels, num_classes: int | None = None, threads: int | None = None
) -> tuple[Counts, Counts, Counts]:
    """Return, per class, pairs that agree on it, its predictions and its references; int64 [C] each.

    ``num_classes=None`` finds C, the largest label + 1. Labels are 1-D uint8, int32 or int64.
    """
    try:
        return _C.count_classes(predictions, references, num_classes or 0, threads or 0)
    except IndexError as error:
        # Without a number of classes only a negative label is out of range.
        raise _refuse(error, num_classes or 2**24) from None
    except ValueError as error:  # too large for tables of its size
        raise InvalidInputError(f"Labels can't be counted: {error}.") from None


def add_confusion(predictions: Labels, references: Labels, confusion: Counts, threads: int | None = None) -> None:
    """Add pairs to ``confusion`` [C, C] in place: row = reference, column = prediction."""
    try:
        _C.add_confusion(predictions, references, confusion, threads or 0)
    except IndexError as error:
        raise _refuse(error, len(confusion)) from None


def label_range(labels: Labels) -> tuple[int, int]:
    """Return the smallest and largest of at least one label."""
    return _C.label_range(labels, 0)


def roc_area(scores: FloatArray, labels: Labels, threads: int | None = None) -> float:
    """Return the area under the ROC curve of scores [n] without NaN and 0/1 labels; NaN unless both labels occur."""
    return _C.roc_area(scores, labels, threads or 0)


def average_precision(scores: FloatArray, labels: Labels, threads: int | None = None) -> float:
    """Return the average precision of scores [n] without NaN and 0/1 labels; NaN without a positive."""
    return _C.average_precision(scores, labels, threads or 0)


def average_ranks(values: FloatArray) -> FloatArray:
    """Return the ranks 1…n of values [n] without NaN; equal values share the mean of theirs."""
    return _C.average_ranks(values)


def tokenize(
    texts: list[str],
    rule: str,
    *,
    lowercase: bool = False,
    stem: bool = False,
    stem_above: int = 3,
    threads: int | None = None,
) -> tuple[npt.NDArray[np.int32], Counts]:
    """Return token ids int32 and offsets int64 [n + 1] of each text's tokens; equal tokens have equal ids.

    ``lowercase`` changes A-Z only; ``stem`` reduces words of a-z and 0-9 longer than ``stem_above`` to their
    Porter stems.
    """
    ids, offsets, _ = _C.tokenize(texts, rule, lowercase, stem, stem_above, threads or 0)
    return ids, offsets


def porter_stem(word: str) -> str:
    """Return the Porter stem of a word of a-z and 0-9, as NLTK's stemmer gives it."""
    return _C.porter_stem(word)


def ngram_overlap(pairs: TokenPairs, max_order: int, threads: int | None = None) -> Counts:
    """Return int64 [n, max_order, 3]: n-grams of each hypothesis, of its references, and in both."""
    return _C.ngram_overlap(*pairs, max_order, threads or 0)


def common_subsequences(pairs: TokenPairs, threads: int | None = None) -> Counts:
    """Return the length of the longest common subsequence of each pair, int64 [n]."""
    return _C.common_subsequences(*pairs, threads or 0)


def edit_distances(pairs: TokenPairs, threads: int | None = None) -> Counts:
    """Return the Levenshtein distance of each pair in tokens, int64 [n]."""
    return _C.edit_distances(*pairs, threads or 0)


def meteor_alignments(pairs: TokenPairs, stems: npt.NDArray[np.int32], threads: int | None = None) -> Counts:
    """Return matched tokens and chunks of METEOR's greedy alignment of each pair, int64 [n, 2]."""
    return _C.meteor_alignments(pairs.ids, stems, *pairs[1:], threads or 0)


def union_subsequences(
    pairs: TokenPairs, hypothesis_sentences: Counts, reference_sentences: Counts, threads: int | None = None
) -> Counts:
    """Return ROUGE-Lsum's hits of each pair of summaries, int64 [n], from documents that are their sentences."""
    return _C.union_subsequences(
        pairs.ids, pairs.hypotheses, pairs.references, hypothesis_sentences, reference_sentences, threads or 0
    )
