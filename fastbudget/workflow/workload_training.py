"""The training of a configured workload: on one rank in the main job, or on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from ..budget import CHECKPOINT_DIR, read_ledger, spend_summary
from ..checkpoint import CheckpointStore
from ..evaluation import EvaluationRecord
from ..training import DataParallel, LearningRateSchedule, Trainer, TrainingResult
from .workload import Workload


class WorkloadTraining:
    """Trains a workload as its configuration says, and remembers what was measured.

    Args:
        workload: Ready to train.
        run_dir: Of the run.
        decay_over: See `fb.Trainer`.
        final_evaluate_cost: Of the split that judges, in units of an evaluation on the validation split.
        num_devices: Devices held; None: one for each rank.
        distributed: See `fb.Trainer`.
        before_final: Called before the final evaluation.
        sinks: Get the records of steps and evaluations.
    """

    def __init__(
        self,
        workload: Workload,
        run_dir: Path,
        *,
        decay_over: Literal["steps", "budget"],
        final_evaluate_cost: float,
        num_devices: int | None = None,
        distributed: DataParallel | str | None = None,
        before_final: Callable[[], None] | None = None,
        sinks: Sequence[Callable[[dict[str, Any]], None]] = (),
    ) -> None:
        self._workload, self._run_dir, self._before_final = workload, run_dir, before_final
        self._measured: dict[int, EvaluationRecord] = {}
        configuration, section = workload.configuration, workload.configuration.train
        self._trainer = Trainer(
            model=workload.model,
            optimizer=workload.build_optimizer(workload.model),
            loss=workload.loss,
            train_data=workload.train,
            budget=configuration.budget.value(),
            run_dir=run_dir,
            evaluate=self._evaluate,
            metric=configuration.ranking_metric,
            mode=configuration.ranking_mode,
            final_evaluate=self._evaluate_finally,
            final_evaluate_cost=final_evaluate_cost,
            max_steps=section.max_steps,
            grad_accumulation=section.grad_accumulation,
            schedule=LearningRateSchedule(
                shape=section.schedule, warmup_steps=section.warmup_steps, cool_down_share=section.cool_down_share
            ),
            stages=[stage.value() for stage in section.stages],
            decay_over=decay_over,
            evaluate_every=section.evaluate_every,
            clip_grad_norm=section.clip_grad_norm,
            precision=section.precision,
            allow_tf32=section.allow_tf32,
            compile=section.compile,
            on_nonfinite=section.on_nonfinite,
            distributed=distributed,
            num_devices=num_devices,
            seed=section.seed,
            sinks=sinks,
        )
        self.num_devices = self._trainer.num_devices

    def fit(self, *, resume: bool) -> TrainingResult:
        """Train; see `fb.Trainer.fit`."""
        return self._trainer.fit(resume=resume)

    def _evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        measured = self._measured[self._trainer.step] = self._workload.evaluate(model, self._workload.validation)
        return {name: value.value for name, value in measured.values.items()}

    def _evaluate_finally(self, model: torch.nn.Module) -> EvaluationRecord:
        if self._before_final is not None:
            self._before_final()
        workload = self._workload
        split = workload.validation if workload.test is None else workload.test
        return workload.evaluate(model, split, workload.test_groups)

    def train_document(self, result: TrainingResult) -> dict[str, Any]:
        """Return how the training ended, as the run's record has it."""
        budget = self._workload.configuration.budget.value()
        spend = spend_summary(read_ledger(self._run_dir), budget, self.num_devices)
        return {
            "stop_reason": result.stop_reason,
            "steps": result.steps,
            "spent_device_hours": spend["device_hours"],
            "budget_device_hours": spend["budget_device_hours"],
            "spent_usd": spend["usd"],
            "seconds_by_phase": spend["seconds_by_phase"],
            "unbilled_seconds_by_phase": spend["unbilled_seconds_by_phase"],
            "sessions": spend["sessions"],
            "best_checkpoint": str(result.best_checkpoint),
            "best_step": result.best_step,
            "best_metrics": result.best_metrics,
            "ranked_by": self._workload.configuration.ranking_metric,
            "last_checkpoint": str(result.last_checkpoint),
        }

    def evaluation_document(self, result: TrainingResult) -> dict[str, Any] | None:
        """Return the figures of the best checkpoint: of the split that judges, else of the validation split."""
        final, split = result.final_metrics, self._workload.judged_split
        if final is None:
            final, split = self._measured.get(result.best_step), "validation"
        return None if final is None else {"split": split, "step": result.best_step, **final.to_json()}


def has_checkpoints(run_dir: Path) -> bool:
    """Whether a run has saved anything that it can be resumed from."""
    directory = run_dir / CHECKPOINT_DIR
    return directory.exists() and bool(CheckpointStore(directory).paths())
