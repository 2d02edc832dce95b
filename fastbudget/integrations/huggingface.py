"""A budget for `transformers.Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..budget import BudgetGuard
from ..core.budget import Budget
from ..core.errors import MissingExtraError
from .guarded_callback import EventGuard

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy
except ImportError as error:
    raise MissingExtraError(
        "fastbudget.integrations.huggingface needs transformers: `pip install 'fastbudget[huggingface]'`."
    ) from error


class BudgetCallback(TrainerCallback):
    """Stops a `transformers.Trainer` so that its last evaluation and save still fit the budget.

    The clock starts with ``train()``. When the budget is near its end, the trainer evaluates and saves once more, as
    far as its arguments ask for evaluations and saves at all, and stops. A first evaluation and a first save are made
    after the first step: from then on a usable checkpoint exists, and the cost of both is known. The ledger in
    ``run_dir`` adds up over restarts (``resume_from_checkpoint``).

    After ``train()`` `guard` tells why it stopped (``stop_reason``) and what was spent (``spend()``).

    Args:
        budget: What may be spent; the tightest limit rules.
        run_dir: Holds the ledger; None: the trainer's ``output_dir``.
        measure_first: Evaluate and save after the first step.
        guard_options: Further arguments of `fastbudget.BudgetGuard`, such as ``num_devices`` or ``on_exhausted``.

    Raises:
        BudgetSpent: from ``train()``, when an evaluation takes so much longer than those before that the limit comes
            first; the last checkpoint is intact.
    """

    def __init__(
        self, budget: Budget, *, run_dir: str | Path | None = None, measure_first: bool = True, **guard_options: Any
    ) -> None:
        self._run_dir = run_dir
        self._measure_first = measure_first
        self._events = EventGuard(budget, guard_options)

    @property
    def guard(self) -> BudgetGuard:
        """The guard of the latest ``train()``."""
        return self._events.opened

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock."""
        self._is_first = self._measure_first
        self._events.begin(Path(self._run_dir or str(args.output_dir)))
        control.should_training_stop = not self._events.step_ended()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Ask for the end, or for the first evaluation and save."""
        is_last = not self._events.step_ended()
        if is_last:
            control.should_training_stop = True
        if is_last or self._is_first:
            interrupted = self.guard.stop_reason in ("sigint", "sigterm")  # every second counts
            control.should_evaluate |= args.eval_strategy != IntervalStrategy.NO and not interrupted
            control.should_save |= args.save_strategy != SaveStrategy.NO
            self._is_first = False
        self._enter_next_phase(control)
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Bill the evaluation and save that an epoch's end brings."""
        self._enter_next_phase(control)

    def _enter_next_phase(self, control: TrainerControl) -> None:
        if control.should_evaluate:
            self._events.enter_phase("evaluate")
        elif control.should_save:
            self._events.enter_phase("checkpoint")

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave an evaluation that the budget no longer covers."""
        self._events.check_deadline()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The evaluation is over; a save may follow."""
        self._events.leave_phase()
        if control.should_save or (
            args.save_strategy == SaveStrategy.BEST and _is_best(args, state, kwargs.get("metrics") or {})
        ):
            self._events.enter_phase("checkpoint")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The save is over: a restart loses nothing before it."""
        self._events.leave_phase()
        self.guard.saved()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop the clock."""
        self._events.end()


def _is_best(args: TrainingArguments, state: TrainerState, metrics: dict[str, float]) -> bool:
    """Return what the trainer will find out about these metrics a moment later."""
    name = args.metric_for_best_model or "loss"
    value = metrics.get(name if name.startswith("eval_") else f"eval_{name}")
    if value is None or state.best_metric is None:
        return value is not None
    return bool(value > state.best_metric if args.greater_is_better else value < state.best_metric)
