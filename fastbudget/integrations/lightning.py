"""A budget for Lightning's `Trainer`."""

from __future__ import annotations

import time
from functools import wraps
from pathlib import Path
from typing import Any

from ..budget import BudgetGuard
from ..core.budget import Budget
from ..core.errors import MissingExtraError
from .guarded_callback import EventGuard

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingExtraError(
        "fastbudget.integrations.lightning needs lightning: `pip install 'fastbudget[lightning]'`."
    ) from error


class BudgetCallback(Callback):
    """Stops a Lightning `Trainer` so that its last validation and save still fit the budget.

    Lightning's own ``Timer`` stops after a batch and then validates beyond its time. Here validations and saves are
    measured, and the time for the last ones is kept back; Lightning validates once more when told to stop. Before the
    first validation its time is taken from the sanity check, batch for batch. The budget outranks ``min_epochs`` and
    ``min_steps``. The ledger in ``run_dir`` adds up over restarts (``ckpt_path=``).

    After ``fit`` `guard` tells why it stopped (``stop_reason``) and what was spent (``spend()``).

    Args:
        budget: What may be spent; the tightest limit rules.
        run_dir: Holds the ledger; None: the trainer's ``default_root_dir``.
        guard_options: Further arguments of `fastbudget.BudgetGuard`, such as ``num_devices`` or ``on_exhausted``.

    Raises:
        BudgetSpent: from ``fit``, when a validation takes so much longer than those before that the limit comes first;
            checkpoints saved before are intact.
    """

    def __init__(self, budget: Budget, *, run_dir: str | Path | None = None, **guard_options: Any) -> None:
        self._run_dir = run_dir
        self._events = EventGuard(budget, guard_options)

    @property
    def guard(self) -> BudgetGuard:
        """The guard of the latest ``fit``."""
        return self._events.opened

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, and measure the trainer's saves from now on."""
        self._events.begin(Path(self._run_dir or trainer.default_root_dir))
        self._has_saved = False
        self._unmeasured_save = trainer.save_checkpoint

        @wraps(trainer.save_checkpoint)
        def measured_save(*args: Any, **kwargs: Any) -> None:
            self._events.enter_phase("checkpoint")
            self._unmeasured_save(*args, **kwargs)
            self._events.leave_phase()
            self._has_saved = True
            self.guard.saved()

        trainer.save_checkpoint = measured_save  # type: ignore[method-assign]

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Expect a validation to take as long, batch for batch, as the last batch of the sanity check."""
        everything = sum(trainer.num_val_batches)
        if everything < float("inf"):
            self.guard.expect("evaluate", self._batch_s * everything)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the first step, if it fits."""
        self._go_on(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch; stop when another, a validation and a save might not fit."""
        if not self._has_saved and trainer.checkpoint_callback is not None:
            # The first save tells what the last one needs.
            first = Path(self._run_dir or trainer.default_root_dir) / "first.ckpt"
            trainer.save_checkpoint(first)
            trainer.strategy.remove_checkpoint(first)
        self._go_on(trainer)

    def _go_on(self, trainer: Trainer) -> None:
        if not self._events.step_ended():
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bill what follows as evaluation; the sanity check belongs to the start-up."""
        if not trainer.sanity_checking:
            self._events.enter_phase("evaluate")

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Measure a batch of the sanity check."""
        self._batch_began_s = time.monotonic()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Leave a validation that the budget no longer covers."""
        self._batch_s = time.monotonic() - self._batch_began_s
        self._events.check_deadline()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The validation is over."""
        if not trainer.sanity_checking:
            self._events.leave_phase()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the ledger with the reason."""
        self._restore(trainer)
        self._events.end(exception)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self._restore(trainer)
        self._events.end()

    def _restore(self, trainer: Trainer) -> None:
        trainer.__dict__.pop("save_checkpoint", None)
