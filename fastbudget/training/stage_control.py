"""What the stage under way means to a trainer: its resources, its end, the next one's beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..budget import BudgetGuard
from .precision import MixedPrecision
from .staged_stream import StagedStream, Stream
from .stages import StageEnd, StageSequence
from .training_step import TrainingStep

if TYPE_CHECKING:
    from .distributed import Ranks


class StageControl:
    """Applies the stages of a run to its training step. With ranks, all call the same methods in the same order.

    Args:
        stages: Of the run.
        training_step: Gets each stage's precision.
        grad_accumulation: Where a stage says nothing else.
        ranks: Of the run, None in one process.
        num_devices: Devices the run holds.
    """

    def __init__(
        self,
        stages: StageSequence,
        training_step: TrainingStep,
        *,
        grad_accumulation: int,
        ranks: Ranks | None,
        num_devices: int,
    ) -> None:
        self.stages = stages
        self._training_step, self._ranks, self._num_devices = training_step, ranks, num_devices
        self._grad_accumulation, self._precision = grad_accumulation, training_step.precision.name

    @classmethod
    def of(cls, stages: StageSequence | None, training_step: TrainingStep, **options: Any) -> StageControl | None:
        """Return the control of a run's stages, None for a run without."""
        return None if stages is None else cls(stages, training_step, **options)

    def take_up(self, stream: Stream | None = None) -> int:
        """Train with the resources of the stage under way; returns the micro-batches per step.

        Args:
            stream: Of the stage before, where one has just ended.
        """
        if isinstance(stream, StagedStream) and not self.stages.is_done:
            stream.begin_stage()
        stage, step = self.stages.current, self._training_step
        precision = stage.precision or self._precision
        if step.precision.name != precision:
            step.precision = MixedPrecision(precision, step.device)
        return stage.grad_accumulation or self._grad_accumulation

    @property
    def wanted_ranks(self) -> int | None:
        """How many ranks the stage wants, None if it has them."""
        wanted = self.stages.current.devices
        return None if wanted == self._num_devices else wanted

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends here; None: it goes on."""
        if self.stages.is_done:
            return "target"
        return "devices" if self.wanted_ranks is not None else None

    def is_used_up(self, guard: BudgetGuard, step: int) -> bool:
        """Whether the stage has spent its share or taken its steps."""
        used_up = self.stages.is_used_up(step, guard.fraction_left)
        if self._ranks is None or self.stages.current.budget_share is None:
            return used_up
        return self._ranks.group.decided(used_up)

    def move_on(self, guard: BudgetGuard, step: int, metrics: Mapping[str, float]) -> StageEnd | None:
        """Go to the next stage if this evaluation, or what was used, ends the one under way; returns how it ended."""
        left = guard.fraction_left
        end = self.stages.update(metrics, step, left if self._ranks is None else self._ranks.group.from_rank_0(left))
        if end is not None:
            guard.note(step=step, **end.to_json())
        return end

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a saved state; None: the run was saved without stages, and begins with the first."""
        if state is not None:
            self.stages.load_state_dict(state)
