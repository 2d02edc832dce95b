"""The best checkpoint so far, and the test of others against it on nested samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..metrics import Metric
from ..stats import SequentialPairedTest
from ..store.content_hash import Hashes, as_keys
from .records import EvaluationRecord
from .sampling import draw_order

FloatArray = npt.NDArray[np.float64]

_LOOK = 50


class Incumbent:
    """Holds the best record so far and compares others with it.

    The examples have one random order, and every sample is the beginning of it, so what two checkpoints were both
    scored on is a beginning too: a draw without replacement, of which the sequential test takes one example after the
    other. It errs with probability ``alpha`` at most per pair, wherever the samples end.

    Args:
        metric: Its name in records.
        ranking: The metric: a mean of values per example within bounds.
        hashes: uint8 [N, 16], contents of the data set.
        seed: Of the order.
        alpha: Error probability of one verdict.
    """

    def __init__(self, metric: str, ranking: Metric[Any], hashes: Hashes, *, seed: int, alpha: float) -> None:
        if not ranking.is_mean or ranking.example_range is None:
            raise InvalidInputError(
                f"The metric that ranks checkpoints must be a mean of bounded values per example, such as accuracy; "
                f"{metric!r} isn't one. Give metric= another one of the metrics."
            )
        self.record: EvaluationRecord | None = None
        self._metric, self._ranking, self._seed, self._alpha = metric, ranking, seed, alpha
        order = draw_order(hashes, seed)
        # Examples of equal content share one score.
        self._contents, content_of = np.unique(as_keys(hashes), return_inverse=True)
        self._content_in_order = content_of[order]
        self._size = len(order)

    def verdict(self, record: EvaluationRecord, against: EvaluationRecord | None = None) -> str | None:
        """Return ``"better"``, ``"worse"``, ``"equal"`` or ``"undecided"`` of a record against the best so far.

        Args:
            record: Of a checkpoint.
            against: Another record than the best.
        """
        other = against or self.record
        if other is None or record is other:
            return None
        differences = self._differences(record, other)
        low, high = self._ranking.example_range or (0.0, 1.0)
        test = SequentialPairedTest(
            self._size, alpha=self._alpha, value_range=(low - high, high - low), seed=self._seed
        )
        for start in range(0, len(differences), _LOOK):
            part = differences[start : start + _LOOK]
            # The test's own draw is another random order; its k-th example is called what is our k-th.
            test.update(test.next_batch(len(part)), part)
        return test.decision

    def paired_value(self, record: EvaluationRecord) -> float:
        """Return the record's value, estimated by its difference from the best so far where both were scored."""
        value = record.values[self._metric].value
        if self.record is None or record is self.record or record.num_examples == self._size:
            return value
        differences = self._differences(record, self.record)
        if len(differences) == 0:
            return value
        sign = 1.0 if self._ranking.higher_is_better else -1.0
        return self.record.values[self._metric].value + sign * float(differences.mean())

    def offer(self, record: EvaluationRecord, verdict: str | None) -> None:
        """Take the record as the best so far if it is the first, certainly better, or the same one seen better."""
        if self.record is None or verdict == "better" or self._seen_better(record):
            self.record = record

    def _seen_better(self, record: EvaluationRecord) -> bool:
        assert self.record is not None
        same = record.model_hash is not None and record.model_hash == self.record.model_hash
        return same and record.num_examples > self.record.num_examples

    def _differences(self, record: EvaluationRecord, other: EvaluationRecord) -> FloatArray:
        """Return record minus other, positive where better, on the beginning of the order that both have."""
        mine, theirs = self._in_order(record), self._in_order(other)
        known = ~(np.isnan(mine) | np.isnan(theirs))
        count = self._size if known.all() else int(known.argmin())
        difference = mine[:count] - theirs[:count]
        return difference if self._ranking.higher_is_better else -difference

    def _in_order(self, record: EvaluationRecord) -> FloatArray:
        if record.examples is None:
            raise InvalidInputError("A checkpoint's results per example are missing: the data's content has no hash.")
        by_content = np.full(len(self._contents), np.nan)
        where = np.searchsorted(self._contents, as_keys(record.examples.hashes))
        by_content[where] = record.examples.scores[self._metric]
        return by_content[self._content_in_order]
