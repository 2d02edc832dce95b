"""What a comparison found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..core.interval import Interval
from .records import EvaluationRecord


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a candidate is better or worse than a baseline on a data set.

    Args:
        decision: ``"better"``: its metric is certainly better. ``"not_worse"``: certainly not worse by more than the
            margin. ``"worse"``: certainly worse by more than the margin. ``"equal"``: exactly equal, on all examples.
            ``"undecided"``: the limit came first. "Certainly" errs with probability ``alpha`` at most in all, and not
            at all when every example was evaluated.
        metric: Its name.
        difference: Candidate minus baseline on the whole data set, positive where the candidate is better: for a
            metric where less is better, the drop. An interval of confidence ``1 - alpha`` that holds whenever it
            stopped, a point when every example was evaluated.
        p_value: Valid whenever it stopped, two-sided, of the hypothesis that the difference is exactly the margin's
            bound; None when every example was evaluated: nothing is left to chance.
        alpha: As given.
        margin: As given.
        num_examples: Evaluated of the candidate, n.
        population_size: Compared on, N: the data set, or the part of it that the baseline was evaluated on.
        num_predicted: Examples that the candidate was run on; the others were in the store.
        num_baseline_predicted: Examples that the baseline had to be run on.
        seconds: Wall time.
        device_seconds: Wall time times the devices held.
        reason: Why it stopped, in words.
        candidate: What is known of the candidate: a baseline for the next comparison. None where nothing was run.
    """

    decision: str
    metric: str
    difference: Interval
    p_value: float | None
    alpha: float
    margin: float
    num_examples: int
    population_size: int
    num_predicted: int
    num_baseline_predicted: int
    seconds: float
    device_seconds: float
    reason: str
    candidate: EvaluationRecord | None = field(default=None, repr=False, compare=False)

    @property
    def passed(self) -> bool | None:
        """The gate's answer: False for worse than the margin, None while undecided."""
        return None if self.decision == "undecided" else self.decision != "worse"

    @property
    def saved_examples(self) -> int:
        """Examples that the full evaluation would have run the candidate on beyond these."""
        return self.population_size - self.num_predicted

    @property
    def n(self) -> int:
        """Examples evaluated."""
        return self.num_examples

    @property
    def N(self) -> int:  # noqa: N802
        """Examples compared on."""
        return self.population_size

    @property
    def interval(self) -> tuple[float, float]:
        """Low and high end of the difference."""
        return self.difference.low, self.difference.high

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in _NOT_PLAIN}
        return facts | {
            "difference": self.difference.to_json(),
            "passed": self.passed,
            "saved_examples": self.saved_examples,
        }


_NOT_PLAIN = ("difference", "candidate")
