"""A lean loop on plain torch that stops inside its budget with its best checkpoint saved and evaluated."""

from __future__ import annotations

import contextlib
import json
import math
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ..budget import CHECKPOINT_DIR, BudgetGuard
from ..checkpoint import CheckpointStore
from ..core.budget import Budget
from ..core.errors import (
    BudgetSpent,
    BudgetTooSmallError,
    InvalidInputError,
    NonFiniteLossError,
    RunDirectoryError,
)
from .batches import BatchStream, call_model, check_can_start_anew, move, num_samples
from .losses import Loss, check_scalar, resolve_loss
from .optimizers import OptimizerFactory, build_optimizer
from .schedule import LearningRateSchedule

METRICS_FILE = "metrics.jsonl"

Sink = Callable[[dict[str, Any]], None]

# Evaluations may take at most this share of the spend when no cadence is given.
_EVALUATION_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """How a run ended.

    ``stop_reason``: ``completed`` (all steps taken), ``budget``, ``sigint``, ``sigterm``. ``best_checkpoint`` is
    durable and was evaluated: ``best_metrics``. ``final_metrics`` is what ``final_evaluate`` returned on it,
    None if the budget left no time. ``spend`` sums the ledger.
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
        train_data: Re-iterable of batches: a mapping of keywords, or a pair (inputs, targets).
        budget: What may be spent.
        run_dir: Holds the ledger, ``metrics.jsonl`` and ``checkpoints/``.
        evaluate: ``evaluate(model) -> {name: number}``, called in eval mode without gradients; random numbers it draws
            don't change the training's.
        metric: Key of ``evaluate``'s result that ranks checkpoints.
        mode: ``"max"`` if larger is better, ``"min"`` if smaller.
        final_evaluate: Called once on the best checkpoint, inside the budget; its result is returned as it is.
        final_evaluate_cost: How long it takes, in units of ``evaluate``.
        max_steps: Optimizer steps; None: until the budget ends.
        grad_accumulation: Micro-batches per step; their gradients are weighted by their numbers of samples.
        schedule: Learning rate over the run.
        decay_over: What progress means to the schedule: ``"steps"`` of max_steps, which repeats exactly; or the
            ``"budget"`` where it is further along than the steps, so that a run it cuts short still ends annealed.
        evaluate_every: Steps between evaluations; None: as often as a quarter of the spend allows.
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
        grad_accumulation: int = 1,
        schedule: LearningRateSchedule | None = None,
        decay_over: Literal["steps", "budget"] | None = None,
        evaluate_every: int | None = None,
        clip_grad_norm: float | None = None,
        num_devices: int = 1,
        seed: int = 0,
        sinks: Sequence[Sink] = (),
    ) -> None:
        for name, value in (
            ("max_steps", max_steps), ("grad_accumulation", grad_accumulation), ("evaluate_every", evaluate_every)
        ):  # fmt: skip
            if value is not None and value < 1:
                raise InvalidInputError(f"{name} must be at least 1, got {value}.")
        check_can_start_anew(train_data, "train_data")
        decay_over = decay_over or ("steps" if max_steps else "budget")
        if decay_over == "steps" and max_steps is None:
            raise InvalidInputError("decay_over='steps' needs max_steps; give it, or decay over the budget.")
        self.model = model
        self.optimizer = build_optimizer(optimizer, model, **(optimizer_options or {}))
        self.loss = resolve_loss(loss)
        self.train_data, self.budget, self.run_dir = train_data, budget, Path(run_dir)
        self.evaluate, self.metric, self.mode = evaluate, metric, mode
        self.final_evaluate = final_evaluate
        self.max_steps, self.grad_accumulation = max_steps, grad_accumulation
        self.schedule = schedule or LearningRateSchedule()
        self.decay_over = decay_over
        self.evaluate_every, self.clip_grad_norm = evaluate_every, clip_grad_norm
        self.num_devices, self.seed = num_devices, seed
        self.step = 0
        self._sinks = list(sinks)
        self._device = next(model.parameters()).device
        self._base_rates = [group["lr"] for group in self.optimizer.param_groups]
        self._final_cost = 1.0 + (final_evaluate_cost if final_evaluate else 0.0)
        self._unread: list[tuple[int, torch.Tensor, float]] = []
        self._train_s_at_evaluation = 0.0
        self._saved_at = -1

    # -- one run ---------------------------------------------------------------------------------------------------

    def fit(self, *, resume: bool = False) -> TrainingResult:
        """Train, evaluate and save; see `TrainingResult`.

        Args:
            resume: Continue from the newest good checkpoint of ``run_dir``, and from what was spent there.

        Raises:
            RunDirectoryError: ``resume`` without a usable checkpoint, or the reverse.
            NonFiniteLossError: the loss became NaN or infinite; the last good checkpoint is kept.
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
        with guard, (self.run_dir / METRICS_FILE).open("a") as log:
            self._log = log
            stream = self._start(guard, resume)
            with contextlib.suppress(BudgetSpent):  # in an evaluation or save; the best was saved before
                self._loop(guard, stream)
            return self._finish(guard, stream)
        raise BudgetTooSmallError(
            f"The budget of {self.run_dir} ended before the first evaluation was saved. Raise it, or evaluate on less."
        )

    def _start(self, guard: BudgetGuard, resume: bool) -> BatchStream:
        self.model.train()
        if resume:
            checkpoint = guard.store.load()
            stream = self._restore(checkpoint.state)
            self._saved_at = self.step
            if self.metric in checkpoint.metrics:
                self._train_s_at_evaluation = guard.spent_s
            else:
                with contextlib.suppress(BudgetSpent):
                    self._evaluate(guard)  # a save after a signal is not evaluated; this also measures the reserve
            return stream
        stream = BatchStream(self.train_data, seed=self.seed)
        self._save(guard, stream, self._evaluate(guard))
        return stream

    def _loop(self, guard: BudgetGuard, stream: BatchStream) -> None:
        while self.max_steps is None or self.step < self.max_steps:
            if not guard.may_continue():
                return
            with guard.timed_step():
                self._train_step(guard, stream)
            if self._evaluation_due(guard):
                self._save(guard, stream, self._evaluate(guard))

    def _finish(self, guard: BudgetGuard, stream: BatchStream) -> TrainingResult:
        self._read_losses()
        interrupted = guard.stop_reason in ("sigint", "sigterm")
        if self._saved_at != self.step:
            with contextlib.suppress(BudgetSpent):
                if interrupted:  # every second counts: save without evaluating
                    self._save(guard, stream, None)
                elif guard.may_evaluate(then_save=True):
                    self._save(guard, stream, self._evaluate(guard))
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
                    final = guard.evaluate(lambda: self._in_eval_mode(self.final_evaluate), typical=False)
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

    def _train_step(self, guard: BudgetGuard, stream: BatchStream) -> None:
        progress = self.step / self.max_steps if self.max_steps else 0.0
        if self.decay_over == "budget":
            progress = max(progress, guard.fraction_used)
        factor = self.schedule.factor(self.step, progress)
        for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            group["lr"] = rate * factor
        batches = [move(next(stream), self._device) for _ in range(self.grad_accumulation)]
        samples = [num_samples(batch) for batch in batches]
        total = torch.zeros((), device=self._device)
        for batch, count in zip(batches, samples, strict=True):
            loss = check_scalar(self.loss(call_model(self.model, batch), batch)) * (count / sum(samples))
            loss.backward()
            total += loss.detach().float().reshape(())
        self._unread.append((self.step + 1, total, self._base_rates[0] * factor))
        # Reading a loss waits for the device, so on a GPU several are read at once.
        if self._device.type == "cpu" or len(self._unread) >= 10:
            self._read_losses()
        if self.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1

    def _read_losses(self) -> None:
        unread, self._unread = self._unread, []
        for step, loss, rate in unread:
            value = float(loss)
            if not math.isfinite(value):
                raise NonFiniteLossError(
                    f"The loss is {value} at step {step}. The last good checkpoint is kept in "
                    f"{self.run_dir / CHECKPOINT_DIR}; lower the learning rate or look for bad values in the data, "
                    "then resume."
                )
            self._record({"step": step, "loss": value, "lr": rate})

    def _record(self, record: dict[str, Any]) -> None:
        # JSON has no NaN; a metric that isn't a number is null.
        metrics = {name: value if math.isfinite(value) else None for name, value in record.get("metrics", {}).items()}
        self._log.write(json.dumps(record | {"metrics": metrics} if metrics else record) + "\n")
        for sink in list(self._sinks):
            try:
                sink(record)
            except Exception as error:
                self._sinks.remove(sink)
                warnings.warn(f"A sink was dropped: it raised {error!r}.", RuntimeWarning, stacklevel=2)

    # -- evaluation and state --------------------------------------------------------------------------------------

    def _evaluation_due(self, guard: BudgetGuard) -> bool:
        if self.max_steps is not None and self.step >= self.max_steps:
            return False  # the last evaluation follows at once
        if self.evaluate_every is not None:
            due = self.step % self.evaluate_every == 0
        else:
            since = guard.spent_s - self._train_s_at_evaluation
            due = since * _EVALUATION_SHARE / (1 - _EVALUATION_SHARE) >= guard.evaluation_upper_s
        return due and guard.may_evaluate(then_save=True, keep_reserve=True)

    def _in_eval_mode(self, function: Callable[[torch.nn.Module], Any] | None) -> Any:
        assert function is not None
        # Iterating a DataLoader draws from torch's generator, so without this the evaluations, whose moments depend on
        # the clock, would decide the order of the training data.
        generators = _random_state()
        self.model.eval()
        try:
            with torch.no_grad():
                return function(self.model)
        finally:
            self.model.train()
            _set_random_state(generators)

    def _evaluate(self, guard: BudgetGuard) -> dict[str, float]:
        self._read_losses()
        metrics = {
            name: float(value) for name, value in guard.evaluate(lambda: self._in_eval_mode(self.evaluate)).items()
        }
        if self.metric not in metrics:
            raise InvalidInputError(f"evaluate must return the metric {self.metric!r}; it returned {sorted(metrics)}.")
        self._train_s_at_evaluation = guard.spent_s
        self._record({"step": self.step, "spent_s": guard.spent_s, "metrics": metrics})
        self._log.flush()
        return metrics

    def _save(self, guard: BudgetGuard, stream: BatchStream, metrics: dict[str, float] | None) -> None:
        guard.checkpoint(self._state(stream), metrics, step=self.step)
        self._saved_at = self.step

    def _state(self, stream: BatchStream) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "epoch": stream.epoch,
            "position": stream.position,
            "base_rates": self._base_rates,
            "random": _random_state(),
        }

    def _restore(self, state: dict[str, Any]) -> BatchStream:
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise InvalidInputError(
                f"The checkpoint in {self.run_dir} doesn't fit the model or optimizer: {error} Resume with the model "
                "it was saved from, or start anew."
            ) from error
        self.step, self._base_rates = state["step"], state["base_rates"]
        # Advancing the loader draws random numbers, so the generators are restored after it.
        stream = BatchStream(self.train_data, seed=self.seed, epoch=state["epoch"], skip=state["position"])
        _set_random_state(state["random"])
        return stream


def _random_state() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
