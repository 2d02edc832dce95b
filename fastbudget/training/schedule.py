"""The learning rate as a function of how far training has come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from ..core.errors import InvalidInputError, one_of

Shape = Literal["linear", "cosine", "wsd", "constant"]


@dataclass(frozen=True, kw_only=True)
class LearningRateSchedule:
    """A factor on every parameter group's own rate: linear warm-up by steps, then the shape by progress.

    Args:
        shape: How the factor falls from 1 to ``final_fraction`` at progress 1. ``"linear"`` and ``"cosine"``: all the
            way. ``"wsd"`` (warm-up, stable, decay): it stays at 1, and cools down as 1 - sqrt over the last
            ``cool_down_share``. ``"constant"``: not at all.
        warmup_steps: Steps over which the factor rises to 1.
        final_fraction: Factor at the end, in [0, 1].
        cool_down_share: Of all steps, those in which ``"wsd"`` falls; in (0, 1]. Hägele et al., Scaling Laws and
            Compute-Optimal Training Beyond Fixed Training Durations, NeurIPS 2024 (arXiv:2405.18392): 1 - sqrt beats
            a linear cool-down, and one of 20% equals a tuned cosine.
    """

    shape: Shape = "linear"
    warmup_steps: int = 0
    final_fraction: float = 0.0
    cool_down_share: float = 0.2

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise InvalidInputError(f"schedule must be one of {one_of(get_args(Shape))}, got {self.shape!r}.")
        if self.warmup_steps < 0:
            raise InvalidInputError(f"warmup_steps must not be negative, got {self.warmup_steps}.")
        if not 0 <= self.final_fraction <= 1:
            raise InvalidInputError(f"final_fraction must be between 0 and 1, got {self.final_fraction}.")
        if not 0 < self.cool_down_share <= 1:
            raise InvalidInputError(f"cool_down_share must be above 0 and at most 1, got {self.cool_down_share}.")

    @cached_property  # asked for at every step
    def decay_starts(self) -> float:
        """Progress from which on the factor falls; what is trained before may go on for any longer."""
        return {"wsd": 1 - self.cool_down_share, "constant": 1.0}.get(self.shape, 0.0)

    @property
    def has_trunk(self) -> bool:
        """Whether a part of the training knows nothing of its end."""
        return self.shape == "wsd" and self.cool_down_share < 1

    def factor(self, step: int, progress: float) -> float:
        """Return the factor for the step about to be taken.

        Args:
            step: Steps taken before this one.
            progress: Share of training done, in [0, 1].
        """
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        progress = min(1.0, max(0.0, progress))
        if progress <= self.decay_starts:
            return warm
        return warm * (self.final_fraction + (1 - self.final_fraction) * self._fallen_to(progress))

    def _fallen_to(self, progress: float) -> float:
        """What is left of the fall from 1 to 0."""
        if self.shape == "wsd":
            return 1 - math.sqrt((progress - self.decay_starts) / self.cool_down_share)
        if self.shape == "cosine":
            return (1 + math.cos(math.pi * progress)) / 2
        return 1 - progress
