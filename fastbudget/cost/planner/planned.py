"""What a search found: the ranked candidates, what was rejected, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .candidates import Candidate
from .limits import Limits


@dataclass(frozen=True, kw_only=True)
class NearestMiss:
    """What would have to give way where nothing fits.

    Attributes:
        text: in words, with numbers.
        needs: what is needed instead of what there is: ``usd``, ``gpu_hours``, ``kwh``, ``wall_hours``,
            ``deadline_hours``, ``memory_bytes`` of a device, ``num_devices``.
        candidate: the nearest candidate; None where none fits memory.
    """

    text: str
    needs: dict[str, float]
    candidate: Candidate | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The ways to train a job, best first.

    Attributes:
        candidates: for each device, number of devices and precision the best layout, and the one that is faster but
            at risk; by ``fits``, Pareto rank, then objective.
        objective: ``"cost"`` or ``"time"``.
        cost_axis: what cost is: ``"usd"``, or ``"gpu_hours"`` where no price is known at all.
        limits: what may be spent.
        rejected: layouts left out by reason: ``divisibility``, ``memory``, ``budget``, ``deadline``, ``precision``
            (which a device lacks), ``interruptions`` (faster than the job restarts), ``price`` and ``power`` (not
            known, and limited); and ``slower``, those that another on the same devices beats.
        num_layouts: layouts that can run on the devices, memory and limits aside.
        why_best: in words, what the best candidate beats and by how much; empty where there is none.
        next_constraint: in words, what keeps it from being better; empty likewise.
        nearest_miss: where nothing fits.
        notes: what was assumed, and why some devices or precisions were left out.
    """

    candidates: tuple[Candidate, ...]
    objective: str
    cost_axis: str
    limits: Limits
    rejected: dict[str, int]
    num_layouts: int
    why_best: str = ""
    next_constraint: str = ""
    nearest_miss: NearestMiss | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def best(self) -> Candidate | None:
        """The best candidate: the objective's optimum of those that fit, else of those at risk; None: there is none."""
        return self.candidates[0] if self.candidates else None

    @property
    def front(self) -> tuple[Candidate, ...]:
        """The candidates that no other beats in both cost and hours, by rising cost."""
        if not self.candidates:
            return ()
        first = [one for one in self.candidates if one.rank == self.candidates[0].rank]
        return tuple(sorted(first, key=lambda one: cost_of(one, self.cost_axis)))

    @property
    def fits(self) -> str:
        """The verdict: ``"yes"``, ``"at risk"`` or ``"no"``."""
        return self.candidates[0].fits if self.candidates else "no"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as one document."""
        miss = self.nearest_miss
        return {
            "fits": self.fits,
            "objective": self.objective,
            "cost_axis": self.cost_axis,
            "limits": self.limits.given,
            "num_layouts": self.num_layouts,
            "rejected": self.rejected,
            "best": None if self.best is None else self.best.to_json(),
            "front": [one.to_json() for one in self.front],
            "candidates": [one.to_json() for one in self.candidates],
            "why_best": self.why_best,
            "next_constraint": self.next_constraint,
            "nearest_miss": None if miss is None else {
                "text": miss.text,
                "needs": miss.needs,
                "candidate": None if miss.candidate is None else miss.candidate.to_json(),
            },
            "notes": list(self.notes),
        }  # fmt: skip


def cost_of(candidate: Candidate, axis: str) -> float:
    """Return a candidate's cost, the middle of its interval; infinity where its price is not known."""
    interval = candidate.cost_usd if axis == "usd" else candidate.gpu_hours
    return float("inf") if interval is None else interval.mid


def ranked(candidates: Sequence[Candidate], axis: str, objective: str) -> tuple[Candidate, ...]:
    """Return candidates with their Pareto ranks, best first."""

    def place(one: Candidate) -> tuple[float, float]:
        cost, hours = cost_of(one, axis), one.wall_hours.mid
        return (cost, hours) if objective == "cost" else (hours, cost)

    result: list[Candidate] = []
    rank = 0
    for risks in sorted({len(one.risks) for one in candidates}):  # the fewer the better
        left = sorted((one for one in candidates if len(one.risks) == risks), key=place)
        while left:
            front, behind, best = [], [], float("inf")
            for one in left:  # by the first coordinate, so one is beaten unless its second is the least so far
                second = place(one)[1]
                if second < best:
                    front.append(one)
                    best = second
                else:
                    behind.append(one)
            result += [replace(one, rank=rank) for one in front]
            left, rank = behind, rank + 1
    return tuple(result)
