"""When to evaluate, and when to save between evaluations."""

from __future__ import annotations

from collections.abc import Callable

from ..budget import BudgetGuard

# Evaluations may take at most this share of the spend when no cadence is given.
_EVALUATION_SHARE = 0.25


class EvaluationTimes:
    """Says after which steps a run evaluates and saves.

    Args:
        evaluate_every: Steps between evaluations; None: as often as a quarter of the spend allows.
        checkpoint_every: Steps between saves; None: as ``mtbf_s`` says.
        mtbf_s: Expected seconds between interruptions; None: no saves but those of evaluations.
        agreed: Makes a decision by the clock that of all ranks.
    """

    def __init__(
        self,
        *,
        evaluate_every: int | None,
        checkpoint_every: int | None,
        mtbf_s: float | None,
        agreed: Callable[[bool], bool],
    ) -> None:
        self._evaluate_every, self._checkpoint_every, self._mtbf_s = evaluate_every, checkpoint_every, mtbf_s
        self.saves_between = checkpoint_every is not None or mtbf_s is not None
        self._agreed = agreed
        self._evaluated_at_s = self._due_s = 0.0
        self._save_interval_s: float | None = None
        self.saved_at = -1

    def evaluated(self, guard: BudgetGuard) -> None:
        """Note that an evaluation was made now."""
        self._evaluated_at_s = guard.spent_s
        self._place(guard)

    def saved(self, guard: BudgetGuard, step: int) -> None:
        """Note that a state was saved now."""
        self.saved_at = step
        self._place(guard)
        if self._mtbf_s is not None:
            self._save_interval_s = guard.store.interval_s(self._mtbf_s)

    def _place(self, guard: BudgetGuard) -> None:
        """Say when the next evaluation is due; what it and its save may take changes only with those made."""
        training_s = guard.evaluation_upper_s * (1 - _EVALUATION_SHARE) / _EVALUATION_SHARE
        self._due_s = self._evaluated_at_s + training_s

    def evaluation_due(self, guard: BudgetGuard, step: int) -> bool:
        """Whether to evaluate and save after this step, if it fits."""
        if self._evaluate_every is not None:
            due = step % self._evaluate_every == 0
        else:
            due = self._agreed(guard.spent_s >= self._due_s)
        return due and self._agreed(guard.may_evaluate(then_save=True, keep_reserve=True))

    def save_due(self, guard: BudgetGuard, step: int) -> bool:
        """Whether to save before the next step."""
        if self.saved_at == step:
            return False
        if self._checkpoint_every is not None:
            return step % self._checkpoint_every == 0
        if self._mtbf_s is None:
            return False
        return self._agreed(self._save_interval_s is not None and guard.unsaved_s >= self._save_interval_s)
