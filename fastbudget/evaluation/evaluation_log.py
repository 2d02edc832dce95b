"""Why each evaluation was run or left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CadenceDecision:
    """One decision of a `Cadence`.

    Attributes:
        number: Of the call, from 1.
        action: ``"quick"``, ``"standard"``, ``"full"``; ``"reused"``: the weights were evaluated before;
            ``"skipped"``.
        reason: In words, with the numbers.
        verdict: What the sequential test says of this checkpoint against the best so far: ``"better"``, ``"worse"``,
            ``"equal"``, ``"undecided"``; None where there was nothing to compare.
        value: Of the ranking metric; None if skipped.
        num_examples: Scored.
        num_predicted: Of these, predicted now and not taken from the store.
        seconds: It took.
        train_s: Seconds of training before it, in all.
        evaluation_s: Seconds of evaluation after it, in all.
    """

    number: int
    action: str
    reason: str
    verdict: str | None
    value: float | None
    num_examples: int
    num_predicted: int
    seconds: float
    train_s: float
    evaluation_s: float

    @property
    def share(self) -> float:
        """Evaluation's share of the time up to here."""
        return self.evaluation_s / max(self.evaluation_s + self.train_s, 1e-12)

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self) | {"share": self.share}
