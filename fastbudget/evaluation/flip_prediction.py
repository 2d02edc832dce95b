"""Which examples is another model likely to judge differently? The unsure ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..store.example_values import unique_examples
from .records import EvaluationRecord

FloatArray = npt.NDArray[np.float64]
_BINS = 10


def flips_from_margins(margins: npt.NDArray[np.float32]) -> FloatArray:
    """Return a guess of each example's flip probability from the baseline's margins, float64 [n].

    Near a gap of 0 between the two best classes a changed model flips as often as not; a sure answer flips rarely:
    0.5 (1 - margin)³, which needed fewest examples among simple curves on digit classifiers in training
    (bench/evaluation/saved_examples.py). A wrong guess costs examples, never the error bound.
    """
    return np.clip(0.5 * (1.0 - np.asarray(margins, np.float64)) ** 3, 0.003, 0.5)


class FlipRates:
    """How often examples flipped between two models, by the first one's correctness and margin: a better guess.

    Args:
        earlier: A record of the same data with margins.
        later: Of a model as different from the earlier one as the next candidate will be from the baseline.
        metric: Whose scores count.

    Raises:
        InvalidInputError: fewer than 100 examples in common, or no margins.
    """

    def __init__(self, earlier: EvaluationRecord, later: EvaluationRecord, metric: str = "accuracy") -> None:
        first, second = earlier.examples, later.examples
        if first is None or second is None or first.margins is None:
            raise InvalidInputError("Flip rates need two records with results per example, and margins in the first.")
        found = unique_examples(second.hashes, second.scores[metric], what="later record").find(first.hashes)
        both = found >= 0
        if both.sum() < 100:
            raise InvalidInputError(f"Flip rates need 100 examples that both records scored, got {int(both.sum())}.")
        lookup = unique_examples(second.hashes, second.scores[metric], what="later record").values
        scores = first.scores[metric]
        flipped = scores[both] != lookup[found[both]]
        self._edges = np.quantile(first.margins[both], np.linspace(0, 1, _BINS + 1)[1:-1])
        cells = self._cells(scores[both], first.margins[both])
        counts = np.bincount(cells, minlength=2 * _BINS)
        self._rates = (np.bincount(cells, flipped, 2 * _BINS) + 0.5) / (counts + 5.0)

    def _cells(self, scores: FloatArray, margins: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        return (scores > 0).astype(np.int64) * _BINS + np.searchsorted(self._edges, margins)

    def predict(self, scores: FloatArray, margins: npt.NDArray[np.float32]) -> FloatArray:
        """Return each example's flip probability, float64 [n]."""
        return np.asarray(self._rates[self._cells(scores, margins)])
