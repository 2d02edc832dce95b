"""What a comparison of several pairs found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..core.interval import Interval
from .records import EvaluationRecord


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One candidate against one baseline.

    Attributes:
        candidate: Its name.
        baseline: Its name.
        decision: ``"better"`` or ``"worse"``; with a margin ``"not_worse"`` or ``"worse"``; ``"equal"``: exactly, all
            examples known; ``"undecided"``.
        difference: Candidate minus baseline on the whole data set, positive where the candidate is better. All rows'
            intervals hold together with probability ``1 - alpha``, whenever it stopped.
        p_value: Adjusted by Holm over the table: the row is decided where it is at most alpha. None for a row of
            identical models, which needs no test.
        num_examples: That the row's decision rests on.
    """

    candidate: str
    baseline: str
    decision: str
    difference: Interval
    p_value: float | None
    num_examples: int

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {
            "difference": self.difference.to_json()
        }


@dataclass(frozen=True, kw_only=True)
class ComparisonTable:
    """All pairs of a `fb.compare_many`.

    Attributes:
        rows: In the order given: baselines within candidates.
        metric: Its name.
        alpha: Probability of any wrong decision in the whole table, at most.
        margin: As given.
        population_size: Examples compared on, N.
        num_examples: Examples drawn: each candidate was scored on these, or fewer once all its rows were decided.
        num_predicted: Examples that candidates were run on, in all; one forward pass serves all baselines.
        seconds: Wall time.
        reason: Why it stopped, in words.
        candidates: What is known of each candidate, by name.
    """

    rows: tuple[ComparisonRow, ...]
    metric: str
    alpha: float
    margin: float
    population_size: int
    num_examples: int
    num_predicted: int
    seconds: float
    reason: str
    candidates: dict[str, EvaluationRecord] = field(repr=False, compare=False, default_factory=dict)

    def __getitem__(self, name: str | tuple[str, str]) -> ComparisonRow:
        """Return the row of a (candidate, baseline), or of the one that varies."""
        found = [row for row in self.rows if name in ((row.candidate, row.baseline), row.candidate, row.baseline)]
        if len(found) != 1:
            raise KeyError(f"{name!r} names {len(found)} rows of the table; name one as (candidate, baseline).")
        return found[0]

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain data."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("rows", "candidates")}
        return {"rows": [row.to_json() for row in self.rows]} | facts
