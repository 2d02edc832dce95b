"""How far training has come towards the end of its steps or of its budget, whichever is nearer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..core.errors import InvalidInputError, one_of


class Progress:
    """The share of training done, for a learning-rate schedule: 1 exactly at the end, wherever that turns out to be.

    Where ``max_steps`` ends the run, progress is the share of them, which repeats exactly. Where the budget does, the
    end is known only as an estimate that changes with the speed of the steps. Before the decay starts, progress is then
    the share of all steps, past and expected: a decay over the last fifth starts when a quarter as many steps are left
    as were taken. From there on each step covers its share of what remains, so the learning rate neither jumps nor
    rises when the estimate changes, and has fallen when the budget ends.

    Args:
        max_steps: Steps of the whole run; None: the budget ends it.
        decay_starts: Progress at which the schedule begins to fall, in [0, 1]; see `LearningRateSchedule.decay_starts`.
        over: ``"budget"``: whichever ends first; ``"steps"``: ``max_steps`` only.
        budget: What may be spent, as plain data: where a run goes on with another one, or with other ``max_steps``, its
            progress is that towards the new end.
    """

    def __init__(
        self,
        *,
        max_steps: int | None = None,
        decay_starts: float = 0.0,
        over: Literal["steps", "budget"] = "budget",
        budget: Mapping[str, Any] | None = None,
    ) -> None:
        if over not in ("steps", "budget"):
            raise InvalidInputError(f"over must be one of {one_of(('steps', 'budget'))}, got {over!r}.")
        if over == "steps" and max_steps is None:
            raise InvalidInputError("decay_over='steps' needs max_steps; give it, or decay over the budget.")
        self.value = 0.0
        self._max_steps, self._decay_starts, self._over = max_steps, decay_starts, over
        self._end = {"max_steps": max_steps, "budget": None if budget is None else dict(budget)}
        self._is_planned = False

    def update(self, step: int, steps_left: float | None = None) -> float:
        """Return the progress for the step about to be taken.

        Args:
            step: Steps taken before this one.
            steps_left: Steps the budget has room for, this one included (`BudgetGuard.steps_left`); None: unknown.
        """
        if self._max_steps is not None:
            by_steps = step / self._max_steps
            if self._over == "steps":
                self.value = by_steps
                return by_steps
            if steps_left is None or steps_left >= self._max_steps - step:
                self.value = max(self.value, by_steps) if self._is_planned else by_steps
                self._is_planned = True
                return self.value
        if steps_left is not None:
            if not self._is_planned or self.value < self._decay_starts:
                self.value = min(step / max(1.0, step + steps_left), self._decay_starts or 1.0)
            else:
                self.value += (1 - self.value) / (max(1.0, steps_left) + 1)
            self._is_planned = True
        return self.value

    def state_dict(self) -> dict[str, Any]:
        """Return the progress, and towards which end."""
        return {"value": self.value, "end": self._end}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Go on from a saved state; returns whether the learning rate rises again, as the end lies further ahead."""
        self.value = state["value"]
        self._is_planned = state["end"] == self._end
        return not self._is_planned and self.value > self._decay_starts
