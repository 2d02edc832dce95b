"""The learning rate as a function of how far training has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..core.errors import InvalidInputError, one_of

Shape = Literal["linear", "constant"]


@dataclass(frozen=True, kw_only=True)
class LearningRateSchedule:
    """A factor on every parameter group's own rate: linear warm-up by steps, then the shape by progress.

    Args:
        shape: ``"linear"`` falls to ``final_fraction`` at progress 1; ``"constant"`` stays.
        warmup_steps: Steps over which the factor rises to 1.
        final_fraction: Factor at the end, in [0, 1].
    """

    shape: Shape = "linear"
    warmup_steps: int = 0
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise InvalidInputError(f"schedule must be one of {one_of(get_args(Shape))}, got {self.shape!r}.")
        if self.warmup_steps < 0:
            raise InvalidInputError(f"warmup_steps must not be negative, got {self.warmup_steps}.")
        if not 0 <= self.final_fraction <= 1:
            raise InvalidInputError(f"final_fraction must be between 0 and 1, got {self.final_fraction}.")

    def factor(self, step: int, progress: float) -> float:
        """Return the factor for the step about to be taken.

        Args:
            step: Steps taken before this one.
            progress: Share of training done, in [0, 1].
        """
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.shape == "constant":
            return warm
        return warm * (1 - (1 - self.final_fraction) * min(1.0, max(0.0, progress)))
