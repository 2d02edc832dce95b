"""A lean loop on plain torch that stops inside its budget with its best checkpoint saved and evaluated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from ..budget import CHECKPOINT_DIR, BudgetGuard
from ..checkpoint import Checkpoint, CheckpointStore
from ..core.budget import Budget
from ..core.errors import (
    BudgetSpent,
    BudgetTooSmallError,
    InvalidInputError,
    RunDirectoryError,
)
from .batch_stream import BatchStream
from .batches import batches_per_epoch
from .distributed import (
    DataParallel,
    RankTrainingStep,
    find_ranks,
    is_restarted,
    report_result,
)
from .early_stopping import EarlyStopping
from .evaluation_batches import EvaluationBatches
from .evaluation_mode import evaluating
from .evaluation_times import EvaluationTimes
from .losses import Loss, own_loss, predicts_next_token, resolve_loss
from .memory_fitting import MemoryFitting
from .metrics_log import Sink
from .nonfinite import check_parameters
from .numerics import check_compile_options, numerics
from .optimizers import OptimizerFactory, build_optimizer
from .precision import MixedPrecision, Precision
from .progress import Progress
from .provenance import describe_session
from .recording import recording
from .run_state import check_state, collect_state, data_position, restore_generators, restore_state
from .schedule import LearningRateSchedule
from .stage_control import StageControl
from .staged_stream import StagedStream, Stream, check_stage_data, data_of_stage, makes_data
from .stages import Stage, StageSequence
from .step_memory import Recompute, StepMemory
from .trainer_checks import check_arguments, check_data, check_devices, check_optimizer
from .training_result import TrainingResult, last_and_best
from .training_step import StepOptions, TrainingStep, weight_function
from .trunk import is_new_trunk, return_to_trunk, save_trunk, warn_of_trunk

# Arguments that provenance tells of in other ways.
_NOT_SETTINGS = ("self", "model", "train_data", "optimizer")

T = TypeVar("T")
Evaluation = Callable[[torch.nn.Module], Any]


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
            (inputs, targets). With stages also a function of a `Stage` that returns one, called as each begins.
        budget: What may be spent.
        run_dir: Holds the ledger, ``metrics.jsonl``, ``provenance.jsonl`` and ``checkpoints/``.
        evaluate: ``evaluate(model) -> {name: number}``, called in eval mode without gradients; random numbers it draws
            don't change the training's. With a parameter ``batch_size=64`` (any default) it is called again with half
            of that when it runs out of memory. A method ``at_end(model)``, if any, is called after the last step.
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
        allow_tf32: TF32 for float32 products on NVIDIA GPUs during `fit`: True, False, or None: as PyTorch is set.
        compile: Compiles the model during `fit`: True, or `torch.compile`'s options by name.
        on_nonfinite: ``"raise"`` stops at a loss or clipped gradient norm that is NaN or infinite; ``"skip"`` leaves
            out that optimizer step, which waits for the device at each step, and stops after 25 in a row.
        early_stopping: Stops on a target or for lack of improvement of ``metric``.
        schedule: Learning rate over the run.
        stages: Parts of the run that follow one another, each with targets and resources of its own; see `Stage`. The
            run ends with the last, if that can end.
        decay_over: The end towards which the schedule decays. ``"budget"``: of ``max_steps``, or of the budget where
            that comes first, so that the run ends annealed in any case; see `Progress`. ``"steps"``: of ``max_steps``.
        evaluate_every: Steps between evaluations; None: as often as a quarter of the spend allows.
        checkpoint_every: Steps between saves, beside those that follow each evaluation; None: as ``mtbf_s`` says.
        mtbf_s: Expected seconds between interruptions (a preempted or failing machine). Saves between evaluations are
            then made as often as wastes least, by Young and Daly; None: none.
        clip_grad_norm: Largest gradient norm; None: no clipping.
        distributed: How several ranks train together: a `DataParallel`, or ``"ddp"`` or ``"fsdp2"``. None: DDP where
            torchrun or `fastbudget train --nproc` started several, or the program made a process group; else alone.
        num_devices: Devices this run holds; None: one for each rank.
        seed: Of batch order and of torch's generators.
        sinks: Called with each record; one that raises is dropped with a warning.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        train_data: Iterable[Any] | Callable[[Stage], Iterable[Any]],
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
        allow_tf32: bool | None = None,
        compile: bool | Mapping[str, Any] = False,
        on_nonfinite: Literal["raise", "skip"] = "raise",
        early_stopping: EarlyStopping | None = None,
        schedule: LearningRateSchedule | None = None,
        stages: Sequence[Stage] = (),
        decay_over: Literal["steps", "budget"] = "budget",
        evaluate_every: int | None = None,
        checkpoint_every: int | None = None,
        mtbf_s: float | None = None,
        clip_grad_norm: float | None = None,
        distributed: DataParallel | str | None = None,
        num_devices: int | None = None,
        seed: int = 0,
        sinks: Sequence[Sink] = (),
    ) -> None:
        settings = dict(locals())
        check_arguments(
            {
                "max_steps": max_steps, "max_epochs": max_epochs, "grad_accumulation": grad_accumulation,
                "evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every,
            },
            {"on_nonfinite": (on_nonfinite, ("raise", "skip")), "mode": (mode, ("max", "min"))},
            mtbf_s=mtbf_s, mode=mode, early_stopping=early_stopping,
        )  # fmt: skip
        check_compile_options(compile)
        sequence = StageSequence(stages) if stages else None
        check_stage_data(train_data, sequence)
        device = check_devices(model)
        optimizer = build_optimizer(optimizer, model, **(optimizer_options or {}))
        check_optimizer(optimizer, model)
        self._ranks = find_ranks(distributed, device)
        num_batches = None
        if not makes_data(train_data):
            if self._ranks is not None:
                num_batches = self._ranks.share_out(train_data, seed)  # type: ignore[arg-type]
            check_data(train_data, num_batches, grad_accumulation)  # type: ignore[arg-type]
        if max_epochs is not None:
            steps = -(-max_epochs * (num_batches or batches_per_epoch(train_data)) // grad_accumulation)
            max_steps = min(steps, max_steps or steps)
        self.model = model
        self.optimizer = optimizer
        self.loss = resolve_loss(loss)
        self.train_data, self.budget, self.run_dir = train_data, budget, Path(run_dir)
        self.evaluate, self.metric, self.mode = evaluate, metric, mode
        self._evaluation = EvaluationBatches(evaluate)
        self.final_evaluate = final_evaluate
        self.max_steps, self.grad_accumulation = max_steps, grad_accumulation
        self.schedule = schedule or LearningRateSchedule()
        self.progress = Progress(
            max_steps=max_steps, decay_starts=self.schedule.decay_starts, over=decay_over, budget=budget.to_json()
        )
        self._times = EvaluationTimes(
            evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, mtbf_s=mtbf_s, agreed=self._agreed
        )
        world_size = 1 if self._ranks is None else self._ranks.world_size
        self.num_devices = world_size if num_devices is None else num_devices
        self.seed, self.early_stopping = seed, early_stopping
        self.step = 0
        self._sinks = sinks
        self._training_step = self._make_step(
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
            is_sharded=self._ranks is not None and self._ranks.model.is_sharded,
        )  # fmt: skip
        self._stages = StageControl.of(
            sequence,
            self._training_step,
            grad_accumulation=grad_accumulation,
            ranks=self._ranks,
            num_devices=world_size if self._ranks is not None else self.num_devices,
        )
        self._final_cost = 1.0 + (final_evaluate_cost if final_evaluate else 0.0)
        self._allow_tf32, self._compile = allow_tf32, compile
        self._settings = {name: value for name, value in settings.items() if name not in _NOT_SETTINGS}

    # -- one run ---------------------------------------------------------------------------------------------------

    def _make_step(self, **arguments: Any) -> TrainingStep:
        if self._ranks is None:
            return TrainingStep(self.model, self.optimizer, **arguments)
        self._ranks.prepare(self.model, self.optimizer)
        return RankTrainingStep(self.model, self.optimizer, ranks=self._ranks, **arguments)

    def fit(self, *, resume: bool | Literal["auto", "trunk"] = False) -> TrainingResult:
        """Train, evaluate and save; see `TrainingResult`.

        Args:
            resume: Continue from the newest good checkpoint of ``run_dir``, and from what was spent there. ``"auto"``:
                if there is one. ``"trunk"``: from the state before the learning rate began to fall, to use a larger
                budget than the run was annealed for; the annealed model is kept in ``cooled_down/``. A process that a
                launcher started again resumes, whatever is given here.

        Raises:
            RunDirectoryError: ``resume`` without a usable checkpoint, or the reverse.
            InvalidInputError: the checkpoint lacks a part of the state, or belongs to another model, optimizer or data.
            OutOfMemoryError: a step or an evaluation doesn't fit the memory, however small it is cut; checkpoints saved
                before are kept.
            NonFiniteLossError: the loss or a parameter became NaN or infinite; the last good checkpoint is kept.
            SaveError: a checkpoint could not be written; earlier ones are intact.
            BudgetTooSmallError: the budget ended before the first evaluation was saved.
            RankFailedError: another rank failed.
        """
        if resume not in (False, True, "auto", "trunk"):
            raise InvalidInputError(f"resume must be True, False, 'auto' or 'trunk', got {resume!r}.")
        if self._ranks is None:
            result = self._fit(resume)
            report_result(result.to_json())
            return result
        with self._ranks.failing_together():
            result = self._fit(resume)
            if self._ranks.is_first:
                report_result(result.to_json())
            self._ranks.group.any(False)  # nobody leaves while another still needs it
        return result

    def _fit(self, resume: bool | Literal["auto", "trunk"]) -> TrainingResult:
        if resume == "trunk" and not is_restarted():
            self._on_first_rank(lambda: return_to_trunk(self.run_dir))
        store = CheckpointStore(
            self.run_dir / CHECKPOINT_DIR, keep_last=2, keep_best=1, metric=self.metric, mode=self.mode
        )
        has_checkpoints = self._agreed(bool(store.paths()))
        if resume == "auto" or is_restarted():
            resume = has_checkpoints
        if has_checkpoints and not resume:
            raise RunDirectoryError(f"{self.run_dir} holds checkpoints already; resume, or choose another run_dir.")
        guard = BudgetGuard(
            self.budget,
            run_dir=self.run_dir,
            num_devices=self.num_devices,
            store=store,
            final_evaluations=self._final_cost,
        )
        session = describe_session(self._settings, self.model, self.optimizer, self.train_data)
        step, ranks = self._training_step, self._ranks
        records = recording(guard, self.run_dir, step, self._sinks, ranks, session, lambda: self.step)
        computing = numerics(self.model, allow_tf32=self._allow_tf32, compile=self._compile)
        with guard, records as self._recording, self._memory.applied(step.micro_batches), computing:
            stream = self._start(guard, bool(resume))
            with contextlib.suppress(BudgetSpent):  # in an evaluation or save; the best was saved before
                self._loop(guard, stream)
            return self._finish(guard, stream)
        raise BudgetTooSmallError(
            f"The budget of {self.run_dir} ended before the first evaluation was saved. Raise it, or evaluate on less."
        )

    def _agreed(self, decision: bool) -> bool:
        """Return rank 0's decision: one that depends on the clock or the disk must be the same on all ranks."""
        return decision if self._ranks is None else self._ranks.group.decided(decision)

    def _on_first_rank(self, function: Callable[[], T]) -> T:
        return function() if self._ranks is None else self._ranks.group.done_by_rank_0(function)

    def _start(self, guard: BudgetGuard, resume: bool) -> Stream:
        if not self.model.training:  # as pretrained models come; parts that were set to eval by themselves stay so
            self.model.train()
        if resume:
            checkpoint = self._load(guard.store)
            stream = self._restore(checkpoint)
            self._times.saved_at = self.step
            if self.metric in checkpoint.metrics:
                self._times.evaluated(guard)
            else:
                with contextlib.suppress(BudgetSpent):
                    self._evaluate(guard)  # a save after a signal is not evaluated; this also measures the reserve
            return stream
        stream = self._stream()
        if not self._memory.is_pending:  # else the step is traced first, and perhaps must be cut
            self._training_step.try_out(stream.look_ahead())
        self._evaluate_and_save(guard, stream)
        return stream

    def _loop(self, guard: BudgetGuard, stream: Stream) -> None:
        ends_early = self._stages is not None or self.early_stopping is not None
        saves_between = self._times.saves_between
        while self.max_steps is None or self.step < self.max_steps:
            if ends_early and (reason := self._reason_to_stop()):
                guard.stop_reason = guard.stop_reason or reason
                return
            if not guard.may_continue():
                return
            # Here, so that the last step is saved once, with its evaluation.
            if saves_between and self._times.save_due(guard, self.step):
                self._save(guard, stream, None)
            stepped = self._train_step(guard, stream)
            is_last = self.max_steps is not None and self.step >= self.max_steps  # its evaluation follows at once
            if stepped and not is_last and (self._times.evaluation_due(guard, self.step) or self._stage_ends(guard)):
                self._evaluate_and_save(guard, stream)

    def _reason_to_stop(self) -> str | None:
        """Return why to stop now, but for the budget and signals, which are the guard's."""
        by_stage = self._stages.stop_reason if self._stages is not None else None
        return by_stage or (self.early_stopping.stop_reason if self.early_stopping is not None else None)

    def _finish(self, guard: BudgetGuard, stream: Stream) -> TrainingResult:
        self._recording.steps.write()
        interrupted = guard.stop_reason in ("sigint", "sigterm", "devices")
        if self._times.saved_at != self.step:
            with contextlib.suppress(BudgetSpent):
                if interrupted:  # every second counts: save without evaluating
                    self._save(guard, stream, None)
                elif self._agreed(guard.may_evaluate(then_save=True)):
                    self._evaluate_and_save(guard, stream, at_end=True)
            # else: steps ate into the reserve. The best checkpoint was saved and evaluated before.
        last, best = self._on_first_rank(lambda: last_and_best(guard.store))
        best_step, best_metrics = guard.store.describe(best)
        final = None
        if not interrupted:
            self.model.load_state_dict(self._load(guard.store, best).state["model"])
            final_evaluate = self.final_evaluate
            if final_evaluate is not None and self._agreed(guard.may_evaluate(self._final_cost - 1.0)):
                with contextlib.suppress(BudgetSpent):
                    final = self._evaluated(guard, final_evaluate, typical=False)
        return TrainingResult(
            stop_reason=guard.stop_reason or "completed",
            steps=self.step,
            best_checkpoint=best,
            best_step=best_step,
            best_metrics=best_metrics,
            last_checkpoint=last,
            final_metrics=final,
            spend=guard.spend(),
            wanted_ranks=self._stages.wanted_ranks if self._stages is not None else None,
        )

    # -- one step --------------------------------------------------------------------------------------------------

    def _train_step(self, guard: BudgetGuard, stream: Stream) -> bool:
        """Take one optimizer step; return False when it was skipped. The schedule moves with the steps taken."""
        first = None
        if self._memory.is_pending:  # not part of the step's time
            first = self._next_batches(stream)
            self._memory.choose(first, self._ranks)
        guard.begin_step()
        factor = self._rate_factor(guard, stream)
        batches = first or self._next_batches(stream)
        records = self._recording
        stepped = self._training_step.take(batches, number=self.step + 1, rate_factor=factor, records=records.steps)
        self.step += stepped
        records.throughput.add(batches, guard.end_step())
        if first is not None:
            self._memory.compare()
        return stepped

    def _next_batches(self, stream: Stream) -> list[Any]:
        count = self.grad_accumulation
        return [next(stream)] if count == 1 else [next(stream) for _ in range(count)]

    @property
    def step_memory(self) -> StepMemory | None:
        """What was chosen so that a step fits the memory; None before the first, or with nothing to choose."""
        return self._memory.chosen

    def _rate_factor(self, guard: BudgetGuard, stream: Stream) -> float:
        """Return the factor on the learning rates for the step about to be taken."""
        schedule, before = self.schedule, self.progress.value
        progress = self.progress.update(self.step, guard.steps_left)
        begins_to_fall = before <= schedule.decay_starts < progress
        if begins_to_fall and schedule.has_trunk and self._agreed(is_new_trunk(guard, self.step)):
            self._recording.log.flush()
            save_trunk(guard, self.step, self._state(stream))
        return schedule.factor(self.step, progress)

    # -- evaluation and state --------------------------------------------------------------------------------------

    def _stage_ends(self, guard: BudgetGuard) -> bool:
        if self._stages is None or not self._stages.is_used_up(guard, self.step):
            return False
        return self._agreed(guard.may_evaluate(then_save=True, keep_reserve=True))

    def _evaluated(self, guard: BudgetGuard, function: Evaluation, *, typical: bool = True) -> Any:
        """Call a function on the model as evaluations want it; with ranks, return rank 0's result on all."""
        batches = self._evaluation if function is self.evaluate else EvaluationBatches(function)

        def call() -> Any:
            return batches.call(self.model, lambda: evaluating(self.model, self._training_step.precision))

        ranks = self._ranks
        if ranks is None:
            return guard.evaluate(call, typical=typical)
        return guard.evaluate(lambda: ranks.evaluated(call), typical=typical, abandon=not ranks.model.is_sharded)

    def _evaluate(self, guard: BudgetGuard, *, at_end: bool = False) -> dict[str, float]:
        self._recording.steps.write()
        check_parameters(self.model, self.step, self.run_dir, self._ranks)
        function = getattr(self.evaluate, "at_end", self.evaluate) if at_end else self.evaluate
        measured = self._evaluated(guard, function)
        metrics = {name: float(value) for name, value in measured.items()}
        if self.metric not in metrics:
            raise InvalidInputError(f"evaluate must return the metric {self.metric!r}; it returned {sorted(metrics)}.")
        self._times.evaluated(guard)
        self._recording.log.write({"step": self.step, "spent_s": guard.spent_s, "metrics": metrics})
        return metrics

    def _evaluate_and_save(self, guard: BudgetGuard, stream: Stream, *, at_end: bool = False) -> None:
        metrics = self._evaluate(guard, at_end=at_end)
        if self.early_stopping is not None:
            self.early_stopping.update(metrics[self.metric])
        if self._stages is not None and (end := self._stages.move_on(guard, self.step, metrics)):
            self._recording.log.write({"step": self.step, "spent_s": guard.spent_s, **end.to_json()})
            self.grad_accumulation = self._stages.take_up(stream)
            self._memory.start_anew()
        self._save(guard, stream, metrics)

    def _save(self, guard: BudgetGuard, stream: Stream, metrics: dict[str, float] | None) -> None:
        if metrics is None:
            check_parameters(self.model, self.step, self.run_dir, self._ranks)
        self._recording.log.flush()  # the history up to this step must not be newer on disk than the state
        guard.checkpoint(self._state(stream), metrics, step=self.step)
        self._times.saved(guard, self.step)

    def _state(self, stream: Stream) -> dict[str, Any]:
        state = collect_state(self.step, self._training_step, stream, self.early_stopping, self._ranks)
        stages = self._stages.stages.state_dict() if self._stages is not None else None
        return state | {"progress": self.progress.state_dict(), "stages": stages}

    def _restore(self, checkpoint: Checkpoint) -> Stream:
        check_state(checkpoint)
        if self._stages is not None:
            self._stages.load_state_dict(checkpoint.state["stages"])
            self.grad_accumulation = self._stages.take_up()
        restore_state(checkpoint, self._training_step, self.early_stopping)
        self.step = checkpoint.state["step"]
        if self.progress.load_state_dict(checkpoint.state["progress"]) and self.schedule.has_trunk:
            warn_of_trunk(self.run_dir)
        self._recording.log.go_back_to(self.step)
        stream = self._stream(data_position(checkpoint, self._ranks))
        restore_generators(checkpoint, self._ranks)
        return stream

    def _load(self, store: CheckpointStore, path: Path | None = None) -> Checkpoint:
        return store.load(path, into=None if self._ranks is None else self._ranks.model.load_targets(self.optimizer))

    def _stream(self, state: Mapping[str, Any] | None = None) -> Stream:
        if self._stages is None:
            return self._make_stream(state)
        self.grad_accumulation = self._stages.take_up()
        return StagedStream(self._make_stream, state, has_own_data=makes_data(self.train_data))

    def _make_stream(self, state: Mapping[str, Any] | None = None) -> BatchStream:
        data, seed = data_of_stage(self.train_data, None if self._stages is None else self._stages.stages, self.seed)
        if self._ranks is not None:
            return self._ranks.stream(data, seed=seed, state=state)
        return BatchStream(data, seed=seed, state=state)
