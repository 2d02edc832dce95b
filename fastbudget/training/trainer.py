"""A lean loop on plain torch that stops inside its budget with its best checkpoint saved and evaluated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ..budget import CHECKPOINT_DIR, BudgetGuard
from ..checkpoint import Checkpoint, CheckpointStore
from ..core.budget import Budget
from ..core.errors import (
    BudgetSpent,
    BudgetTooSmallError,
    InvalidInputError,
    RunDirectoryError,
    one_of,
)
from .batch_stream import BatchStream, check_can_resume
from .batches import batches_per_epoch
from .early_stopping import EarlyStopping
from .evaluation_batches import EvaluationBatches
from .evaluation_mode import evaluating
from .losses import Loss, own_loss, predicts_next_token, resolve_loss
from .memory_fitting import MemoryFitting
from .metrics_log import MetricsLog, Sink
from .nonfinite import check_parameters
from .optimizers import OptimizerFactory, build_optimizer
from .precision import MixedPrecision, Precision
from .run_state import collect_state, restore_generators, restore_state
from .schedule import LearningRateSchedule
from .step_memory import Recompute, StepMemory
from .step_records import StepRecords
from .throughput import Throughput, estimated_flops, peak_of
from .training_step import StepOptions, TrainingStep, weight_function

# Evaluations may take at most this share of the spend when no cadence is given.
_EVALUATION_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """How a run ended.

    ``stop_reason``: ``completed`` (all steps taken), ``budget``, ``target`` or ``patience`` (early stopping),
    ``sigint``, ``sigterm``. ``best_checkpoint`` is durable and was evaluated: ``best_metrics``. ``final_metrics`` is
    what ``final_evaluate`` returned on it, None if the budget left no time. ``spend`` sums the ledger.
    """

    stop_reason: str
    steps: int
    best_checkpoint: Path
    best_step: int
    best_metrics: dict[str, float]
    last_checkpoint: Path
    final_metrics: Any
    spend: dict[str, Any] = field(default_factory=dict)


class Trainer:
    """Trains a model until its steps are taken or its budget is spent, whichever comes first.

    Before the first step the untrained model is evaluated and saved: from then on there is always a durable,
    evaluated checkpoint, and the cost of both is known.

    Args:
        model: Trained in place, on the device its parameters are on. After `fit` it holds the best checkpoint.
        optimizer: A name, an optimizer, or a function of the trainable parameters.
        optimizer_options: ``lr``, … for a named optimizer.
        loss: ``loss(outputs, batch) -> scalar`` (the mean over the batch), a name, or None for the model's own.
        train_data: Re-iterable of batches, or `TokenDataset.batches`; a batch is a mapping of keywords, or a pair
            (inputs, targets).
        budget: What may be spent.
        run_dir: Holds the ledger, ``metrics.jsonl`` and ``checkpoints/``.
        evaluate: ``evaluate(model) -> {name: number}``, called in eval mode without gradients; random numbers it draws
            don't change the training's. With a parameter ``batch_size=64`` (any default) it is called again with half
            of that when it runs out of memory.
        metric: Key of ``evaluate``'s result that ranks checkpoints.
        mode: ``"max"`` if larger is better, ``"min"`` if smaller.
        final_evaluate: Called once on the best checkpoint, inside the budget; its result is returned as it is.
        final_evaluate_cost: How long it takes, in units of ``evaluate``.
        max_steps: Optimizer steps; None: until the budget ends.
        max_epochs: The same in passes over ``train_data``, which must then have a length.
        grad_accumulation: Batches per step.
        micro_batch_size: Most samples in a micro-batch, into which batches are cut: a step's gradient stays that of its
            whole batch. ``"auto"``: the largest that is predicted to fit. None: batches as they are. In all cases a
            step that runs out of memory is taken again in halves.
        recompute: Blocks of the model whose activations are computed again in the backward pass: ``"none"``,
            ``"full"`` (every repeated block), ``"auto"`` (the fewest with which the step is predicted to fit), or
            names of modules or their classes.
        memory_limit_bytes: What a step may need at its peak: of tensors on the CPU, of device memory on a GPU; one that
            is predicted to need more is refused before it is taken. None: the device's memory.
        loss_weight: What the loss of a micro-batch averages over, so that a step's gradient is that of its whole batch:
            ``"targets"``: those that count (see `count_targets`: integers other than -100); ``"samples"``; or a
            function of the batch.
        precision: ``"fp32"``, ``"bf16-mixed"`` or ``"fp16-mixed"`` (with a loss scale); evaluations use it too.
        on_nonfinite: ``"raise"`` stops at a loss or clipped gradient norm that is NaN or infinite; ``"skip"`` leaves
            out that optimizer step, which waits for the device at each step, and stops after 25 in a row.
        early_stopping: Stops on a target or for lack of improvement of ``metric``.
        schedule: Learning rate over the run.
        decay_over: What progress means to the schedule: ``"steps"`` of max_steps, which repeats exactly; or the
            ``"budget"`` where it is further along than the steps, so that a run it cuts short still ends annealed.
        evaluate_every: Steps between evaluations; None: as often as a quarter of the spend allows.
        checkpoint_every: Steps between saves, beside those that follow each evaluation; None: as ``mtbf_s`` says.
        mtbf_s: Expected seconds between interruptions (a preempted or failing machine). Saves between evaluations are
            then made as often as wastes least, by Young and Daly; None: none.
        clip_grad_norm: Largest gradient norm; None: no clipping.
        num_devices: Devices this run holds.
        seed: Of batch order and of torch's generators.
        sinks: Called with each record; one that raises is dropped with a warning.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        train_data: Iterable[Any],
        budget: Budget,
        run_dir: str | Path,
        evaluate: Callable[[torch.nn.Module], Mapping[str, float]],
        metric: str,
        mode: Literal["max", "min"] = "max",
        optimizer: str | torch.optim.Optimizer | OptimizerFactory = "adamw",
        optimizer_options: Mapping[str, Any] | None = None,
        loss: str | Loss | None = None,
        final_evaluate: Callable[[torch.nn.Module], Any] | None = None,
        final_evaluate_cost: float = 1.0,
        max_steps: int | None = None,
        max_epochs: int | None = None,
        grad_accumulation: int = 1,
        micro_batch_size: int | Literal["auto"] | None = None,
        recompute: Recompute = "none",
        memory_limit_bytes: int | None = None,
        loss_weight: Literal["targets", "samples"] | Callable[[Any], float] = "targets",
        precision: Precision = "fp32",
        on_nonfinite: Literal["raise", "skip"] = "raise",
        early_stopping: EarlyStopping | None = None,
        schedule: LearningRateSchedule | None = None,
        decay_over: Literal["steps", "budget"] | None = None,
        evaluate_every: int | None = None,
        checkpoint_every: int | None = None,
        mtbf_s: float | None = None,
        clip_grad_norm: float | None = None,
        num_devices: int = 1,
        seed: int = 0,
        sinks: Sequence[Sink] = (),
    ) -> None:
        for name, value in (
            ("max_steps", max_steps), ("max_epochs", max_epochs), ("grad_accumulation", grad_accumulation),
            ("evaluate_every", evaluate_every), ("checkpoint_every", checkpoint_every),
        ):  # fmt: skip
            if value is not None and value < 1:
                raise InvalidInputError(f"{name} must be at least 1, got {value}.")
        for name, choice, known in (("on_nonfinite", on_nonfinite, ("raise", "skip")), ("mode", mode, ("max", "min"))):
            if choice not in known:
                raise InvalidInputError(f"{name} must be one of {one_of(known)}, got {choice!r}.")
        if mtbf_s is not None and not mtbf_s > 0:
            raise InvalidInputError(f"mtbf_s must be above 0 seconds, got {mtbf_s}.")
        if early_stopping is not None and early_stopping.mode != mode:
            raise InvalidInputError(f"early_stopping has mode {early_stopping.mode!r} and the trainer {mode!r}.")
        check_can_resume(train_data, "train_data")
        if max_epochs is not None:
            steps = -(-max_epochs * batches_per_epoch(train_data) // grad_accumulation)
            max_steps = min(steps, max_steps or steps)
        decay_over = decay_over or ("steps" if max_steps else "budget")
        if decay_over == "steps" and max_steps is None:
            raise InvalidInputError("decay_over='steps' needs max_steps; give it, or decay over the budget.")
        self.model = model
        self.optimizer = build_optimizer(optimizer, model, **(optimizer_options or {}))
        self.loss = resolve_loss(loss)
        self.train_data, self.budget, self.run_dir = train_data, budget, Path(run_dir)
        self.evaluate, self.metric, self.mode = evaluate, metric, mode
        self._evaluation = EvaluationBatches(evaluate)
        self.final_evaluate = final_evaluate
        self.max_steps, self.grad_accumulation = max_steps, grad_accumulation
        self.schedule = schedule or LearningRateSchedule()
        self.decay_over = decay_over
        self.evaluate_every, self.checkpoint_every, self.mtbf_s = evaluate_every, checkpoint_every, mtbf_s
        self.num_devices, self.seed, self.early_stopping = num_devices, seed, early_stopping
        self.step = 0
        self._sinks = sinks
        device = next(model.parameters()).device
        self._training_step = TrainingStep(
            model,
            self.optimizer,
            precision=MixedPrecision(precision, device),
            device=device,
            options=StepOptions(
                loss=self.loss,
                weight_of=weight_function(loss_weight, shifted=self.loss is own_loss and predicts_next_token(model)),
                clip_grad_norm=clip_grad_norm,
                skip_nonfinite=on_nonfinite == "skip",
            ),
            run_dir=self.run_dir,
        )
        self._memory = MemoryFitting(
            model, self.loss, self.optimizer, precision=precision, device=device, recompute=recompute,
            micro_batch_size=micro_batch_size, memory_limit_bytes=memory_limit_bytes,
        )  # fmt: skip
        self._final_cost = 1.0 + (final_evaluate_cost if final_evaluate else 0.0)
        self._evaluated_at_s = self._evaluation_due_s = 0.0
        self._saved_at = -1
        self._save_interval_s: float | None = None

    # -- one run ---------------------------------------------------------------------------------------------------

    def fit(self, *, resume: bool = False) -> TrainingResult:
        """Train, evaluate and save; see `TrainingResult`.

        Args:
            resume: Continue from the newest good checkpoint of ``run_dir``, and from what was spent there.

        Raises:
            RunDirectoryError: ``resume`` without a usable checkpoint, or the reverse.
            InvalidInputError: the checkpoint lacks a part of the state, or belongs to another model, optimizer or data.
            OutOfMemoryError: a step or an evaluation doesn't fit the memory, however small it is cut; checkpoints saved
                before are kept.
            NonFiniteLossError: the loss or a parameter became NaN or infinite; the last good checkpoint is kept.
            SaveError: a checkpoint could not be written; earlier ones are intact.
            BudgetTooSmallError: the budget ended before the first evaluation was saved.
        """
        store = CheckpointStore(
            self.run_dir / CHECKPOINT_DIR, keep_last=2, keep_best=1, metric=self.metric, mode=self.mode
        )
        if store.paths() and not resume:
            raise RunDirectoryError(f"{self.run_dir} holds checkpoints already; resume, or choose another run_dir.")
        guard = BudgetGuard(
            self.budget,
            run_dir=self.run_dir,
            num_devices=self.num_devices,
            store=store,
            final_evaluations=self._final_cost,
        )
        with guard, self._recording(guard), self._memory.applied(self._training_step.micro_batches):
            stream = self._start(guard, resume)
            with contextlib.suppress(BudgetSpent):  # in an evaluation or save; the best was saved before
                self._loop(guard, stream)
            return self._finish(guard, stream)
        raise BudgetTooSmallError(
            f"The budget of {self.run_dir} ended before the first evaluation was saved. Raise it, or evaluate on less."
        )

    @contextlib.contextmanager
    def _recording(self, guard: BudgetGuard) -> Iterator[None]:
        with closing(MetricsLog(self.run_dir, self._sinks)) as self._log:
            self._records = StepRecords(self._log, self._training_step.device, self.run_dir)
            self._throughput = Throughput(
                guard,
                self._training_step.device,
                peak_flops_per_s=peak_of(self._training_step.device, self._training_step.precision.name),
                flops_of=self._micro_batch_flops,
            )
            guard.at_looks(self._write_records)
            try:
                yield
            finally:
                self._records.write_read()

    def _micro_batch_flops(self, batch: Any) -> float | None:
        return estimated_flops(self.model, self.loss, batch, self._training_step.precision.name)

    def _write_records(self) -> None:
        self._records.write()
        if self._throughput.is_due():
            self._log.write(self._throughput.record(self.step))
        self._log.flush()

    def _start(self, guard: BudgetGuard, resume: bool) -> BatchStream:
        if not self.model.training:  # as pretrained models come; parts that were set to eval by themselves stay so
            self.model.train()
        if resume:
            checkpoint = guard.store.load()
            stream = self._restore(checkpoint)
            self._saved_at = self.step
            if self.metric in checkpoint.metrics:
                self._evaluated_at_s = guard.spent_s
                self._place_evaluation(guard)
            else:
                with contextlib.suppress(BudgetSpent):
                    self._evaluate(guard)  # a save after a signal is not evaluated; this also measures the reserve
            return stream
        stream = self._make_stream()
        self._evaluate_and_save(guard, stream)
        return stream

    def _loop(self, guard: BudgetGuard, stream: BatchStream) -> None:
        while self.max_steps is None or self.step < self.max_steps:
            if self.early_stopping is not None and self.early_stopping.stop_reason is not None:
                guard.stop_reason = guard.stop_reason or self.early_stopping.stop_reason
            if not guard.may_continue():
                return
            if self._save_due(guard):  # here, so that the last step is saved once, with its evaluation
                self._save(guard, stream, None)
            stepped = self._train_step(guard, stream)
            if stepped and self._evaluation_due(guard):
                self._evaluate_and_save(guard, stream)

    def _finish(self, guard: BudgetGuard, stream: BatchStream) -> TrainingResult:
        self._records.write()
        interrupted = guard.stop_reason in ("sigint", "sigterm")
        if self._saved_at != self.step:
            with contextlib.suppress(BudgetSpent):
                if interrupted:  # every second counts: save without evaluating
                    self._save(guard, stream, None)
                elif guard.may_evaluate(then_save=True):
                    self._evaluate_and_save(guard, stream)
            # else: steps ate into the reserve. The best checkpoint was saved and evaluated before.
        last = guard.store.latest()
        best = guard.store.best() or last  # no evaluation gave a number: none is better than another
        if last is None or best is None:
            raise RunDirectoryError(f"{guard.store.directory} lost its checkpoints while the run was training.")
        best_step, best_metrics = guard.store.describe(best)
        final = None
        if not interrupted:
            self.model.load_state_dict(guard.store.load(best).state["model"])
            if self.final_evaluate is not None and guard.may_evaluate(self._final_cost - 1.0):
                with contextlib.suppress(BudgetSpent):
                    last_evaluation = EvaluationBatches(self.final_evaluate)
                    final = guard.evaluate(lambda: self._call_on_model(last_evaluation), typical=False)
        return TrainingResult(
            stop_reason=guard.stop_reason or "completed",
            steps=self.step,
            best_checkpoint=best,
            best_step=best_step,
            best_metrics=best_metrics,
            last_checkpoint=last,
            final_metrics=final,
            spend=guard.spend(),
        )

    # -- one step --------------------------------------------------------------------------------------------------

    def _train_step(self, guard: BudgetGuard, stream: BatchStream) -> bool:
        """Take one optimizer step; return False when it was skipped. The schedule moves with the steps taken."""
        first = None
        if self._memory.is_pending:  # not part of the step's time
            first = self._next_batches(stream)
            self._memory.choose(first)
        guard.begin_step()
        factor = self._rate_factor(guard)
        batches = first or self._next_batches(stream)
        stepped = self._training_step.take(batches, number=self.step + 1, rate_factor=factor, records=self._records)
        self.step += stepped
        self._throughput.add(batches, guard.end_step())
        if first is not None:
            self._memory.compare()
        return stepped

    def _next_batches(self, stream: BatchStream) -> list[Any]:
        return [next(stream) for _ in range(self.grad_accumulation)]

    @property
    def step_memory(self) -> StepMemory | None:
        """What was chosen so that a step fits the memory; None before the first, or with nothing to choose."""
        return self._memory.chosen

    def _rate_factor(self, guard: BudgetGuard) -> float:
        """Return the factor on the learning rates for the step about to be taken."""
        progress = self.step / self.max_steps if self.max_steps else 0.0
        if self.decay_over == "budget":
            progress = max(progress, guard.fraction_used)
        return self.schedule.factor(self.step, progress)

    # -- evaluation and state --------------------------------------------------------------------------------------

    def _evaluation_due(self, guard: BudgetGuard) -> bool:
        if self.max_steps is not None and self.step >= self.max_steps:
            return False  # the last evaluation follows at once
        if self.evaluate_every is not None:
            due = self.step % self.evaluate_every == 0
        else:
            due = guard.spent_s >= self._evaluation_due_s
        return due and guard.may_evaluate(then_save=True, keep_reserve=True)

    def _place_evaluation(self, guard: BudgetGuard) -> None:
        """Say when the next one is due; what it and its save may take changes only with those made."""
        training_s = guard.evaluation_upper_s * (1 - _EVALUATION_SHARE) / _EVALUATION_SHARE
        self._evaluation_due_s = self._evaluated_at_s + training_s

    def _save_due(self, guard: BudgetGuard) -> bool:
        if self._saved_at == self.step:
            return False
        if self.checkpoint_every is not None:
            return self.step % self.checkpoint_every == 0
        return self._save_interval_s is not None and guard.unsaved_s >= self._save_interval_s

    def _call_on_model(self, function: EvaluationBatches) -> Any:
        return function.call(self.model, lambda: evaluating(self.model, self._training_step.precision))

    def _evaluate(self, guard: BudgetGuard) -> dict[str, float]:
        self._records.write()
        check_parameters(self.model, self.step, self.run_dir)
        measured = guard.evaluate(lambda: self._call_on_model(self._evaluation))
        metrics = {name: float(value) for name, value in measured.items()}
        if self.metric not in metrics:
            raise InvalidInputError(f"evaluate must return the metric {self.metric!r}; it returned {sorted(metrics)}.")
        self._evaluated_at_s = guard.spent_s
        self._place_evaluation(guard)
        self._log.write({"step": self.step, "spent_s": guard.spent_s, "metrics": metrics})
        return metrics

    def _evaluate_and_save(self, guard: BudgetGuard, stream: BatchStream) -> None:
        metrics = self._evaluate(guard)
        if self.early_stopping is not None:
            self.early_stopping.update(metrics[self.metric])
        self._save(guard, stream, metrics)

    def _save(self, guard: BudgetGuard, stream: BatchStream, metrics: dict[str, float] | None) -> None:
        if metrics is None:
            check_parameters(self.model, self.step, self.run_dir)
        self._log.flush()  # the history up to this step must not be newer on disk than the state
        state = collect_state(self.step, self._training_step, stream, self.early_stopping)
        guard.checkpoint(state, metrics, step=self.step)
        self._saved_at = self.step
        self._place_evaluation(guard)
        if self.mtbf_s is not None:
            self._save_interval_s = guard.store.interval_s(self.mtbf_s)

    def _restore(self, checkpoint: Checkpoint) -> BatchStream:
        restore_state(checkpoint, self._training_step, self.early_stopping)
        self.step = checkpoint.state["step"]
        self._log.go_back_to(self.step)
        stream = self._make_stream(checkpoint.state["data"])
        restore_generators(checkpoint)
        return stream

    def _make_stream(self, state: Mapping[str, Any] | None = None) -> BatchStream:
        return BatchStream(self.train_data, seed=self.seed, state=state)
