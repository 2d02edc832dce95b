"""When evaluations say that training is done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from ..core.errors import InvalidInputError

StopReason = Literal["target", "patience"]


class EarlyStopping:
    """Stops when a metric has reached its target, or hasn't improved for a number of evaluations.

    Args:
        mode: ``"max"`` if a larger metric is better, ``"min"`` if a smaller.
        patience: Evaluations in a row without improvement after which to stop; None: never for that reason.
        min_delta: A value improves when it is better than the best by more than this; not negative in either mode.
        target: Stop once the metric is at least this good; None: no target.

    A value that is NaN doesn't improve. In `fb.Trainer` the state is saved in checkpoints, so patience survives a
    resume.
    """

    def __init__(
        self,
        *,
        mode: Literal["max", "min"],
        patience: int | None = None,
        min_delta: float = 0.0,
        target: float | None = None,
    ) -> None:
        if mode not in ("max", "min"):
            raise InvalidInputError(f"mode must be 'max' or 'min', got {mode!r}.")
        if patience is not None and patience < 1:
            raise InvalidInputError(f"patience must be at least 1 evaluation, got {patience}.")
        if not (min_delta >= 0 and math.isfinite(min_delta)):
            raise InvalidInputError(
                f"min_delta must be a number of at least 0, got {min_delta}; the direction comes from mode."
            )
        if target is not None and not math.isfinite(target):
            raise InvalidInputError(f"target must be a finite number, got {target}.")
        if patience is None and target is None:
            raise InvalidInputError("EarlyStopping needs a patience or a target; without either it never stops.")
        self.mode, self.patience, self.min_delta, self.target = mode, patience, min_delta, target
        self.best: float | None = None
        self.last: float | None = None
        self.without_improvement = 0

    def update(self, value: float) -> StopReason | None:
        """Take in the next evaluation's metric; return why to stop, or None to go on."""
        self.last = value
        improves = self.best is None or self._gain(value, self.best) > self.min_delta
        if improves and not math.isnan(value):
            self.best, self.without_improvement = value, 0
        else:
            self.without_improvement += 1
        return self.stop_reason

    def _gain(self, value: float, over: float) -> float:
        return value - over if self.mode == "max" else over - value

    @property
    def stop_reason(self) -> StopReason | None:
        """Why to stop now; None: go on."""
        if self.target is not None and self.last is not None and self._gain(self.last, self.target) >= 0:
            return "target"
        if self.patience is not None and self.without_improvement >= self.patience:
            return "patience"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the best and the last value, and how many evaluations didn't improve on the best."""
        return {"best": self.best, "last": self.last, "without_improvement": self.without_improvement}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.best, self.last = state["best"], state["last"]
        self.without_improvement = state["without_improvement"]
