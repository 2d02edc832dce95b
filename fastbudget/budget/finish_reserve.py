"""What finishing a run may take: one more step, the last save, the last evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .reserves import (
    EVALUATION_SIGMA,
    SAVE_SIGMA,
    STEP_SIGMA,
    DurationEstimate,
    LogNormal,
    least_waste_s,
    sum_of,
)

_MOST_SIGMAS = 4.0


class FinishReserve:
    """Learns how long steps, saves and evaluations take, and adds them up.

    Args:
        final_evaluations: Evaluations after the last step, in units of the measured ones.
    """

    def __init__(self, final_evaluations: float) -> None:
        self.steps = DurationEstimate(STEP_SIGMA)
        self._by_phase = {"evaluate": DurationEstimate(EVALUATION_SIGMA), "checkpoint": DurationEstimate(SAVE_SIGMA)}
        self._final_evaluations = final_evaluations

    def add(self, phase: str, seconds: float) -> None:
        """Take in how long a save or an evaluation took."""
        self._by_phase[phase].add(seconds)

    def learn(self, measured_s: Mapping[str, Sequence[float]]) -> None:
        """Take in what earlier sessions measured, unless this one has measured already."""
        for phase, estimate in self._by_phase.items():
            if not len(estimate):
                for seconds in measured_s.get(phase, ()):
                    estimate.add(seconds)

    def _sum(self, evaluations: float, saves: float, step: bool) -> LogNormal | None:
        parts = [
            (self._by_phase["evaluate"].next_one(), evaluations),
            (self._by_phase["checkpoint"].next_one(), saves),
            (self.steps.next_one(), float(step)),
        ]
        return sum_of(parts)

    def upper_s(
        self, sigmas: float, *, evaluations: float | None = None, saves: float = 1.0, step: bool = True
    ) -> float:
        """Return what finishing takes, so many sigma above its median; 0 while nothing is known."""
        total = self._sum(self._final_evaluations if evaluations is None else evaluations, saves, step)
        return total.quantile_s(sigmas) if total else 0.0

    def most_s(self) -> float:
        """Return more than `least_waste_s` can be."""
        return self.upper_s(_MOST_SIGMAS)

    def least_waste_s(self, at_stake_s: float) -> float:
        """Return how much to keep back for finishing; see `reserves.least_waste_s`."""
        total = self._sum(self._final_evaluations, 1.0, True)
        return least_waste_s(total, at_stake_s) if total else 0.0
