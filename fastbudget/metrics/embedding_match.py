"""BERTScore-style matching of token embeddings from any encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ..core.errors import InvalidInputError, one_of
from .inputs import to_numpy
from .metric_protocol import FloatArray
from .registered import register
from .row_metrics import MeanMetric
from .text_batches import TextBatch, TextMetric, f_score

Measure = Literal["f1", "precision", "recall"]
Encoder = Callable[[list[str]], Sequence[Any]]


@register("bertscore", task="text_generation")
class EmbeddingMatch(TextMetric, MeanMetric):
    """Mean over examples of greedily matched cosine similarities of token embeddings; the best reference counts.

    Recall takes for each token of the reference its most similar one of the prediction, precision the other way round.
    A text without tokens matches another such text and nothing else. Source: T. Zhang et al., "BERTScore: Evaluating
    Text Generation with BERT", ICLR 2020, without idf weights and baseline rescaling.

    Args:
        encoder: ``encoder(texts) -> one array float [tokens, D] per text``, without padding or special tokens.
        encoder_name: What stands for it in the signature; its own name by default. Name model and revision.
        measure: ``"f1"``, ``"precision"`` or ``"recall"``.
    """

    example_range: ClassVar[tuple[float, float] | None] = (-1.0, 1.0)

    def __init__(self, *, encoder: Encoder, encoder_name: str | None = None, measure: Measure = "f1") -> None:
        if not callable(encoder):
            raise InvalidInputError("encoder must be a function from texts to one array [tokens, D] each.")
        if measure not in get_args(Measure):
            raise InvalidInputError(f"measure must be one of {one_of(get_args(Measure))}, got {measure!r}.")
        self.encoder = encoder
        self.encoder_name = encoder_name or getattr(encoder, "__qualname__", type(encoder).__name__)
        self.measure = measure

    @property
    def signature(self) -> str:
        """Name, version, encoder and measure."""
        return f"{self.name}|version:{self.version}|encoder:{self.encoder_name}|measure:{self.measure}"

    def _rows(self, batch: TextBatch) -> FloatArray:
        pairs = batch.pairs()
        different = list(dict.fromkeys(pairs.predictions + pairs.references))
        encoded = self.encoder(different) if different else []
        if len(encoded) != len(different):
            raise InvalidInputError(f"encoder gave {len(encoded)} arrays for {len(different)} texts.")
        vectors = {text: _unit_rows(array, text) for text, array in zip(different, encoded, strict=True)}
        texts = zip(pairs.predictions, pairs.references, strict=True)
        precision, recall = np.array([_matched(vectors[a], vectors[b]) for a, b in texts]).reshape(-1, 2).T
        # Of negative similarities the harmonic mean means nothing; they count as no match.
        f1 = f_score(np.maximum(precision, 0), np.maximum(recall, 0))
        scores = {"precision": precision, "recall": recall, "f1": f1}
        return np.asarray(scores[self.measure][batch.best(f1)][:, None])


def _unit_rows(array: Any, text: str) -> FloatArray:
    vectors = np.asarray(to_numpy(array), np.float64)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise InvalidInputError(
            f"encoder must give finite numbers [tokens, D] for each text, got {list(vectors.shape)} for {text[:40]!r}."
        )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1))


def _matched(predicted: FloatArray, wanted: FloatArray) -> tuple[float, float]:
    if len(predicted) == 0 or len(wanted) == 0:
        same = float(len(predicted) == len(wanted))
        return same, same
    similarity = predicted @ wanted.T
    return float(similarity.max(1).mean()), float(similarity.max(0).mean())
