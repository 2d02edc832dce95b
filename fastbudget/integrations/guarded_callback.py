"""What the callbacks for other people's trainers share: a guard driven by events instead of ``with`` blocks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..budget import BudgetGuard
from ..core.budget import Budget
from ..core.errors import BudgetSpent, InvalidInputError


class EventGuard:
    """Opens, feeds and closes a `BudgetGuard` as events come in.

    Args:
        budget: What may be spent.
        guard_options: Passed to the guard.
    """

    def __init__(self, budget: Budget, guard_options: dict[str, Any]) -> None:
        # An evaluation of another trainer can't be left quietly: time for one and a half is kept back.
        self._budget, self._options = budget, {"final_evaluations": 1.5, **guard_options}
        self._open = ExitStack()
        self._step = ExitStack()
        self._phase = ExitStack()
        self.guard: BudgetGuard | None = None

    def begin(self, run_dir: Path) -> None:
        """Start the budget's clock."""
        self.end()  # of a fit that broke off
        self.guard = self._open.enter_context(BudgetGuard(self._budget, run_dir=run_dir, **self._options))

    @property
    def opened(self) -> BudgetGuard:
        """The guard; an error before the trainer began."""
        if self.guard is None:
            raise InvalidInputError("The budget's clock starts with training: nothing was spent yet.")
        return self.guard

    def end(self, error: BaseException | None = None) -> None:
        """Stop the clock and close the ledger."""
        self.leave_phase()
        self._step.close()
        kind, trace = (type(error), error.__traceback__) if error else (None, None)
        self._open.__exit__(kind, error, trace)

    def step_ended(self) -> bool:
        """Count a step and begin the next; returns whether that one fits."""
        self.leave_phase()
        self._step.close()
        goes_on = self.opened.may_continue()
        self._step.enter_context(self.opened.timed_step())
        return goes_on

    def enter_phase(self, name: str) -> None:
        """Bill what follows as ``evaluate`` or ``checkpoint``."""
        self.leave_phase()
        self._phase.enter_context(self.opened.phase(name))

    def leave_phase(self) -> None:
        """Go back to billing steps, and remember how long the phase took."""
        self._phase.close()

    def check_deadline(self) -> None:
        """Leave an evaluation that the budget no longer covers.

        Raises:
            BudgetSpent: the watchdog announced the limit.
        """
        if self.guard is not None and self.guard.is_over:
            raise BudgetSpent(
                "The budget ended during an evaluation, which is abandoned. Checkpoints saved before are intact."
            )
