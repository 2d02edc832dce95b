"""Stages: a training in parts, each with targets that end it and with resources of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..core.errors import InvalidInputError
from .precision import Precision, check_precision

Mode = Literal["max", "min"]
EndReason = Literal["targets", "budget_share", "max_steps"]

# What a stage may not leave to data that was made before it.
_OF_THE_DATA = ("micro_batch_size", "seq_len")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a training. It ends when all its targets are met at one evaluation, or what it may use is used up.

    Args:
        name: Unique among the run's stages.
        targets: Metrics of ``evaluate`` and the values at which the stage is done; all must be reached.
        mode: Which way the targets lie: ``"max"`` if larger is better, ``"min"`` if smaller; or a mapping by metric.
        budget_share: Share of the whole budget that the stage may spend; None: what is left.
        max_steps: Steps it may take.
        devices: Ranks that train in it, one device each. Where the run has another number, it saves and ends with the
            stop reason ``"devices"``; `fastbudget train` then starts that many, which resume. None: as many as there
            are.
        grad_accumulation: Micro-batches per step; None: the trainer's.
        precision: None: the trainer's.
        micro_batch_size: Samples in a micro-batch, for the function that makes the stage's data.
        seq_len: Length of its sequences, for that function.
        options: Whatever else that function needs to know.

    Raises:
        InvalidInputError: a value out of range, or targets without their direction.
    """

    name: str
    targets: Mapping[str, float] = field(default_factory=dict)
    mode: Mode | Mapping[str, Mode] | None = None
    budget_share: float | None = None
    max_steps: int | None = None
    devices: int | None = None
    grad_accumulation: int | None = None
    precision: Precision | None = None
    micro_batch_size: int | None = None
    seq_len: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"Stage {self.name!r}"
        for name in ("max_steps", "devices", "grad_accumulation", *_OF_THE_DATA):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidInputError(f"{where}: {name} must be an integer of at least 1, got {value!r}.")
        if self.budget_share is not None and not 0 < self.budget_share <= 1:
            raise InvalidInputError(f"{where}: budget_share must be above 0 and at most 1, got {self.budget_share}.")
        if self.precision is not None:
            check_precision(self.precision)
        for metric, target in self.targets.items():
            if not isinstance(target, int | float) or not math.isfinite(target):
                raise InvalidInputError(f"{where}: the target of {metric} must be a finite number, got {target!r}.")
            if self._mode_of(metric) not in ("max", "min"):
                raise InvalidInputError(
                    f"{where}: mode must say 'max' or 'min' for {metric}, whose direction no name tells; got "
                    f"{self._mode_of(metric)!r}."
                )

    def _mode_of(self, metric: str) -> Any:
        return self.mode.get(metric) if isinstance(self.mode, Mapping) else self.mode

    @property
    def can_end(self) -> bool:
        """Whether something but the run's own end ends it."""
        return bool(self.targets) or self.budget_share is not None or self.max_steps is not None

    def is_reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether one evaluation meets all targets. NaN meets none; a stage without targets is never reached.

        Raises:
            InvalidInputError: the evaluation lacks a target's metric.
        """
        missing = [metric for metric in self.targets if metric not in metrics]
        if missing:
            raise InvalidInputError(
                f"Stage {self.name!r} has a target for {', '.join(missing)}; evaluate returned {sorted(metrics)}."
            )
        return bool(self.targets) and all(
            metrics[metric] >= target if self._mode_of(metric) == "max" else metrics[metric] <= target
            for metric, target in self.targets.items()
        )


@dataclass(frozen=True, kw_only=True)
class StageEnd:
    """The end of a stage and the beginning of the next, None after the last; shares are of the whole budget."""

    ended: str
    reason: EndReason
    next: str | None
    steps: int
    spent_share: float

    def to_json(self) -> dict[str, Any]:
        """Return it as a record."""
        return {
            "stage_ended": self.ended,
            "reason": self.reason,
            "stage": self.next,
            "stage_steps": self.steps,
            "stage_spent_share": round(self.spent_share, 6),
        }


class StageSequence:
    """The stages of one run, and where it stands.

    Args:
        stages: In order. All but the last need something that ends them.

    Raises:
        InvalidInputError: none, names used twice, a stage without an end before the last, or shares above 1 together.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        if not isinstance(stages, Sequence) or not all(isinstance(stage, Stage) for stage in stages):
            raise InvalidInputError(f"stages must be a list of fastbudget.training.Stage, got {stages!r}.")
        names = [stage.name for stage in stages]
        if not stages:
            raise InvalidInputError("stages is empty; give at least one Stage, or leave stages out.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInputError(f"Stages must have names of their own; used twice: {', '.join(twice)}.")
        endless = [stage.name for stage in stages[:-1] if not stage.can_end]
        if endless:
            raise InvalidInputError(
                f"Stage {endless[0]!r} never ends, and others follow: give it targets, budget_share or max_steps."
            )
        shares = sum(stage.budget_share or 0.0 for stage in stages)
        if shares > 1 + 1e-9:
            raise InvalidInputError(f"The stages' budget_share add up to {shares:.3g}; there is only 1 to share.")
        self._stages = tuple(stages)
        self.index = 0  # of the stage under way
        self._begun_at_step, self._begun_at_left = 0, 1.0
        self.is_done = False

    @property
    def current(self) -> Stage:
        """The stage under way; the last one when all have ended."""
        return self._stages[self.index]

    def needs_own_data(self) -> str | None:
        """Return what of a stage only its own data can give, None if all stages may use the same."""
        for stage in self._stages:
            for name in _OF_THE_DATA:
                if getattr(stage, name) is not None:
                    return f"Stage {stage.name!r} sets {name}"
        return None

    def is_used_up(self, step: int, fraction_left: float) -> bool:
        """Whether the stage has spent its share or taken its steps.

        Args:
            step: Steps of the whole run so far.
            fraction_left: Of the whole budget; see `BudgetGuard.fraction_left`.
        """
        return not self.is_done and self._limit_reached(step, fraction_left) is not None

    def _limit_reached(self, step: int, fraction_left: float) -> EndReason | None:
        stage = self.current
        if stage.max_steps is not None and step - self._begun_at_step >= stage.max_steps:
            return "max_steps"
        if stage.budget_share is not None and self._begun_at_left - fraction_left >= stage.budget_share:
            return "budget_share"
        return None

    def update(self, metrics: Mapping[str, float], step: int, fraction_left: float) -> StageEnd | None:
        """Take in an evaluation; if the stage is over, go to the next and return how it ended.

        Args:
            metrics: What was measured.
            step: Steps of the whole run so far.
            fraction_left: Of the whole budget.
        """
        stage = self.current
        if self.is_done:
            return None
        reached = stage.is_reached(metrics)
        reason: EndReason | None = "targets" if reached else self._limit_reached(step, fraction_left)
        if reason is None:
            return None
        steps, spent = step - self._begun_at_step, self._begun_at_left - fraction_left
        self._begun_at_step, self._begun_at_left = step, fraction_left
        if self.index + 1 < len(self._stages):
            self.index += 1
        else:
            self.is_done = True
        following = None if self.is_done else self.current.name
        return StageEnd(ended=stage.name, reason=reason, next=following, steps=steps, spent_share=spent)

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands."""
        return {
            "stage": self.current.name,
            "begun_at_step": self._begun_at_step,
            "begun_at_left": self._begun_at_left,
            "is_done": self.is_done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            InvalidInputError: it belongs to other stages.
        """
        names = [stage.name for stage in self._stages]
        if state["stage"] not in names:
            raise InvalidInputError(
                f"The run was saved in stage {state['stage']!r}, and the stages given are {', '.join(names)}; keep the "
                "names of stages that a run has been in."
            )
        self.index = names.index(state["stage"])
        self._begun_at_step, self._begun_at_left = state["begun_at_step"], state["begun_at_left"]
        # The last stage then may not be the last now.
        self.is_done = state["is_done"] and self.index + 1 == len(names)
        if state["is_done"] and not self.is_done:
            self.index += 1
