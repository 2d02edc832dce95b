"""Standard operating procedures: how to evaluate in each phase of a project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..core.errors import InvalidInputError, did_you_mean, one_of
from .evaluation_cadence import Cadence
from .quality_checklist import Evidence, QualityChecklist, fill_in
from .tiers import Tier


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A procedure. Change a part of one with `dataclasses.replace`.

    Attributes:
        name: Its name.
        purpose: What is decided in it.
        quick: Tier at each evaluation in training.
        standard: Tier at each ``standard_every``-th, and when something changed.
        standard_every: Evaluations.
        max_share: Of the time that evaluation may take.
        safety_critical: Whether decisions from samples are forbidden.
        alpha: Error probability of each decision.
        margin: What a candidate may lose against the baseline, in the metric's unit.
        largest_half_width: Of the ranking metric's interval, for the checklist.
        metrics: Names by type of task; the first ranks.
        checks: Names of the checklist's items.
    """

    name: str
    purpose: str
    quick: Tier
    standard: Tier
    standard_every: int
    max_share: float
    safety_critical: bool
    alpha: float
    margin: float
    largest_half_width: float
    metrics: Mapping[str, tuple[str, ...]]
    checks: tuple[str, ...]

    def metrics_for(self, task: str) -> tuple[str, ...]:
        """Return the metrics for a type of task; raises InvalidInputError for one that has none."""
        if task not in self.metrics:
            raise InvalidInputError(
                f"{self.name} has no metrics for tasks of the type {task!r}.{did_you_mean(task, self.metrics)} It has "
                f"them for {one_of(self.metrics)}; name your own."
            )
        return self.metrics[task]

    def cadence(
        self,
        predict_with: Callable[[Any], Callable[[Any], Any]],
        data: Any,
        *,
        task: str = "classification",
        **options: Any,
    ) -> Cadence:
        """Return the `Cadence` of this phase; ``options`` replace what it sets.

        Args:
            predict_with: As for `Cadence`.
            data: As for `Cadence`.
            task: Type of task, for the metrics.
            options: For `Cadence`.
        """
        own: dict[str, Any] = {
            "quick": self.quick,
            "standard": self.standard,
            "standard_every": self.standard_every,
            "max_share": self.max_share,
            "safety_critical": self.safety_critical,
            "alpha": self.alpha,
        }
        if "metrics" not in options:
            own["metrics"] = self.metrics_for(task)
        return Cadence(predict_with, data, **(own | options))

    def checklist(self, evidence: Evidence | None = None) -> QualityChecklist:
        """Return the checklist, answered as far as the evidence goes; people answer the rest with ``answered``."""
        return fill_in(self.name, self.checks, evidence or Evidence(), largest_half_width=self.largest_half_width)


# Half-widths: an accuracy's 95% interval on the tier that the phase relies on, at its widest (0.5): ±4.9 points on 400
# examples, ±2.2 on 2,000. The release relies on everything.
PHASES: Mapping[str, Phase] = MappingProxyType(
    {
        "exploration": Phase(
            name="exploration",
            purpose="Which idea is worth more work? Cheap, and wrong now and then.",
            quick=Tier(name="quick", num_examples=200),
            standard=Tier(name="standard", num_examples=1000),
            standard_every=10,
            max_share=0.15,
            safety_critical=False,
            alpha=0.1,
            margin=0.0,
            largest_half_width=0.05,
            metrics=MappingProxyType({"classification": ("accuracy",)}),
            checks=("interval", "alerts", "share"),
        ),
        "tuning": Phase(
            name="tuning",
            purpose="Which setting is better? Small differences count, and many are compared.",
            quick=Tier(name="quick", num_examples=400),
            standard=Tier(name="standard", num_examples=2000),
            standard_every=5,
            max_share=0.25,
            safety_critical=False,
            alpha=0.05,
            margin=0.0,
            largest_half_width=0.025,
            metrics=MappingProxyType({"classification": ("accuracy", "f1_macro")}),
            checks=("interval", "alerts", "share", "content", "preprocessing", "baseline"),
        ),
        "release": Phase(
            name="release",
            purpose="May it replace what is in use? Everything is evaluated, and people sign.",
            quick=Tier(name="quick", num_examples=2000),
            standard=Tier(name="standard"),
            standard_every=1,
            max_share=1.0,
            safety_critical=True,
            alpha=0.01,
            margin=0.005,
            largest_half_width=0.01,
            metrics=MappingProxyType(
                {"classification": ("accuracy", "f1_macro", "precision_macro", "recall_macro")}
            ),
            checks=(
                "complete", "interval", "alerts", "content", "preprocessing", "baseline", "slices", "approved",
                "untouched", "errors_read",
            ),
        ),
    }
)  # fmt: skip


def phase(name: str) -> Phase:
    """Return the procedure of a phase: ``"exploration"``, ``"tuning"`` or ``"release"``.

    Raises:
        InvalidInputError: another name.
    """
    if name not in PHASES:
        raise InvalidInputError(f"Unknown phase {name!r}.{did_you_mean(name, PHASES)} Known: {one_of(PHASES)}.")
    return PHASES[name]
