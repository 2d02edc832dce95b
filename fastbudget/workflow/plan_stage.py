"""The plan: counts without running, seconds from a short calibration, and whether that fits the budget."""

from __future__ import annotations

import copy
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..budget import FinishReserve
from ..checkpoint import CheckpointStore
from ..core.errors import BudgetTooSmallError
from ..core.interval import Interval
from ..core.units import SECONDS_PER_HOUR, format_seconds
from ..cost import Trace, trace_step
from ..training import OPTIMIZERS, call_model, num_samples
from ..training.batch_stream import BatchStream
from ..training.batches import move
from ..training.numerics import float32_products
from ..training.precision import MixedPrecision
from .workload import Workload

_CALIBRATION_S = 1.5
_WARM_UP_STEPS = 3
_MOST_STEPS = 50
# What a second of calibration can't see: other load on the machine later, clocks falling, caches filling.
_DRIFT_LOW, _DRIFT_HIGH = 0.85, 1.3


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measured on the device at hand, on copies: the model itself is as it was.

    ``samples`` are in one micro-batch. ``threads`` are torch's on the CPU, the number that was fastest. ``steps_s`` are
    seconds of single steps; evaluations are of whole splits, extrapolated from their first batches where those took
    long. ``final_evaluation_cost`` is the last split's size in units of the validation split's.
    """

    samples: int
    threads: int
    steps_s: list[float]
    save_s: float
    evaluation_s: float
    final_evaluation_s: float
    final_evaluation_cost: float

    @property
    def step_s(self) -> Interval:
        """An 80% interval of the mean step: the measured spread, widened for drift."""
        low, high = np.quantile(self.steps_s, [0.1, 0.9])
        mid = statistics.median(self.steps_s)
        return Interval(float(low) * _DRIFT_LOW, mid, float(high) * _DRIFT_HIGH)


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Leave every global random generator as it was."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
    random.setstate(python)
    np.random.set_state(numpy)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _time_steps(workload: Workload, model: torch.nn.Module, accumulation: int) -> list[float]:
    optimizer = workload.build_optimizer(model)
    stream = BatchStream(workload.train, seed=workload.configuration.train.seed)
    precision = MixedPrecision(workload.configuration.train.precision, workload.device)
    model.train()
    times: list[float] = []
    deadline = time.perf_counter() + _CALIBRATION_S
    for index in range(_WARM_UP_STEPS + _MOST_STEPS):
        start = time.perf_counter()
        for _ in range(accumulation):
            batch = move(next(stream), workload.device)
            with precision.autocast():
                loss = workload.loss(call_model(model, batch), batch)
            precision.scaler.scale(loss).backward()
        precision.scaler.step(optimizer)
        precision.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        _synchronize(workload.device)
        now = time.perf_counter()
        if index >= _WARM_UP_STEPS:
            times.append(now - start)
        # At least three, however slow: two can't show a spread.
        if now > deadline and len(times) >= 3:
            break
    return times


def _time_evaluation(workload: Workload, model: torch.nn.Module, data: Iterable[Any]) -> float:
    """Return the seconds of one pass, extrapolated by examples once it takes as long as the calibration may."""
    batches: list[Any] = []
    start = time.perf_counter()
    model.eval()
    precision = MixedPrecision(workload.configuration.train.precision, workload.device)
    with torch.no_grad(), precision.autocast():
        for batch in data:
            batches.append(batch)
            if len(batches) == 1:
                continue  # the second pass over it is timed, warm
            if time.perf_counter() - start > _CALIBRATION_S / 2:
                break
        start = time.perf_counter()
        taken = batches[:8]
        workload.evaluate(model, taken)
        _synchronize(workload.device)
    seconds = time.perf_counter() - start
    whole = _num_examples(data)
    return seconds * whole / sum(num_samples(batch) for batch in taken) if whole else seconds


def _num_examples(data: Iterable[Any]) -> int | None:
    """Return about how many examples a loader yields, without reading it all; None when it doesn't say."""
    if not isinstance(data, Sized):
        return None
    return len(data) * num_samples(next(iter(data)))


def _time_save(workload: Workload, model: torch.nn.Module, scratch: Path) -> float:
    directory = scratch / "calibration"
    optimizer = workload.build_optimizer(model)
    try:
        store = CheckpointStore(directory)
        start = time.perf_counter()
        store.save(0, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "slots": _slots(model)})
        return time.perf_counter() - start
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _slots(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors as large as Adam's two moments, which a new optimizer doesn't have yet."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {f"{name}.{slot}": torch.zeros_like(parameter) for name, parameter in named for slot in range(2)}


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch's CPU operators use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _time_thread_counts(workload: Workload, model: torch.nn.Module, fixed: int | None) -> tuple[int, list[float]]:
    """Return how many threads to use, and the seconds of steps with them.

    Threads that wait for each other by spinning slow small models down, many times so on a machine shared with others.
    """
    most = torch.get_num_threads()
    candidates = [fixed] if fixed else [most]
    if not fixed and workload.device.type == "cpu" and most > 1:
        candidates.append(1)
    timed = {}
    for count in candidates:
        with torch_threads(count):
            timed[count] = _time_steps(workload, model, workload.configuration.train.grad_accumulation)
    best = min(candidates, key=lambda count: statistics.median(timed[count]))
    return best, timed[best]


def calibrate(workload: Workload, scratch: Path, threads: int | None = None) -> Calibration:
    """Measure steps, an evaluation of each split, and a save, in a few seconds and without side effects.

    Args:
        workload: Left as it was.
        scratch: Where a checkpoint is saved and deleted again.
        threads: torch's threads; None tries all and one.
    """
    with _generators_kept(), float32_products(workload.configuration.train.allow_tf32):
        model = copy.deepcopy(workload.model)
        threads, steps = _time_thread_counts(workload, model, threads)
        model = copy.deepcopy(workload.model)  # the timed steps may have driven the first copy to NaN
        with torch_threads(threads):
            evaluation = _time_evaluation(workload, model, workload.validation)
            final, cost = evaluation, 1.0
            if workload.test is not None:
                final = _time_evaluation(workload, model, workload.test)
                sizes = _num_examples(workload.test), _num_examples(workload.validation)
                cost = sizes[0] / sizes[1] if sizes[0] and sizes[1] else final / evaluation
        save = _time_save(workload, model, scratch)
        samples = num_samples(next(iter(workload.train)))
    return Calibration(
        samples=samples,
        threads=threads,
        steps_s=steps,
        save_s=save,
        evaluation_s=evaluation,
        final_evaluation_s=final,
        final_evaluation_cost=cost,
    )


class _ModelWithLoss(torch.nn.Module):
    """A batch in, its loss out: what one micro-batch computes."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.model, self._loss = workload.model, workload.loss

    def forward(self, batch: Any) -> torch.Tensor:
        return self._loss(call_model(self.model, batch), batch)


def trace(workload: Workload) -> Trace:
    """Trace one optimizer step on fake tensors.

    Raises:
        InvalidInputError: the model can't be traced: it reads tensors' contents.
    """
    configuration = workload.configuration
    section = configuration.optimizer
    optimizer: Callable[..., torch.optim.Optimizer] = OPTIMIZERS[section.name]
    with _generators_kept():
        batch = next(iter(workload.train))
    return trace_step(
        _ModelWithLoss(workload),
        (batch,),
        optimizer=lambda params: optimizer(params, lr=section.lr, weight_decay=section.weight_decay),
        precision=configuration.train.precision,
        grad_accumulation=configuration.train.grad_accumulation,
        kernels=workload.device.type,
    )


def make_plan(
    workload: Workload,
    traced: Trace | None,
    calibration: Calibration,
    *,
    num_devices: int,
    spent_s: float = 0.0,
    steps_taken: int = 0,
) -> dict[str, Any]:
    """Return the plan's record.

    Args:
        workload: With its configuration.
        traced: One optimizer step; None where it couldn't be traced.
        calibration: Of the device at hand.
        num_devices: Devices the run holds.
        spent_s: Billed by earlier sessions of the run.
        steps_taken: By earlier sessions.

    Raises:
        BudgetTooSmallError: one step, one save and one evaluation don't fit in what is left.
    """
    section, budget = workload.configuration.train, workload.configuration.budget.value()
    limit = budget.in_seconds(num_devices)
    left = limit.seconds - spent_s
    step = calibration.step_s
    least = step.mid + calibration.save_s + calibration.evaluation_s
    if left < least:
        raise BudgetTooSmallError(
            f"One step ({format_seconds(step.mid)}), one save ({format_seconds(calibration.save_s)}) and one "
            f"evaluation ({format_seconds(calibration.evaluation_s)}) take {format_seconds(least)}; the budget "
            f"({limit.ruling_limit}) has {format_seconds(max(0.0, left))} left"
            + (f" of {format_seconds(limit.seconds)}" if spent_s else "")
            + f". Give at least {(spent_s + least) * num_devices / SECONDS_PER_HOUR:.2g} device-hours. "
            "Nothing was trained."
        )
    requested = max(0, section.max_steps - steps_taken)
    every = section.evaluate_every or max(1, section.max_steps // 10)
    round_s = calibration.evaluation_s + calibration.save_s
    # The untrained model is evaluated and saved first, the last state and the chosen one at the end.
    fixed = round_s + round_s + calibration.final_evaluation_s
    reserve = _reserve(calibration)
    affordable = int(max(0.0, left - round_s - reserve) / (step.mid + round_s / every))
    planned = min(requested, affordable)
    rounds = planned // every

    def seconds(step_s: float) -> float:
        return planned * step_s + rounds * round_s + fixed

    predicted = Interval(seconds(step.low), seconds(step.mid), min(max(seconds(step.high), seconds(step.mid)), left))
    if predicted.mid > left:
        predicted = Interval(min(predicted.low, left), left, left)
    hours = predicted.scaled(num_devices / SECONDS_PER_HOUR)
    counts = _counts(workload.model, traced)
    step_flops = counts["step_flops"]
    return {
        **counts,
        "flops_note": "matrix products, convolutions and attention; a multiply-add is 2",
        "samples_per_step": calibration.samples * section.grad_accumulation,
        "step_s": step.to_json(),
        "achieved_flops_per_s": None if step_flops is None else step_flops / step.mid,
        "peak_memory_note": "tensors of building the model and of training steps, unrounded; not the process",
        "save_s": calibration.save_s,
        "evaluation_s": calibration.evaluation_s,
        "final_evaluation_s": calibration.final_evaluation_s,
        "final_evaluation_cost": calibration.final_evaluation_cost,
        "requested_steps": section.max_steps,
        "planned_steps": steps_taken + planned,
        "cut_by_budget": planned < requested,
        # Repeatable to the bit where the budget is ample; annealed in any case where it may end the run.
        "decay_over": "steps" if planned == requested and seconds(step.high) <= left else "budget",
        "evaluate_every": every,
        "predicted_device_hours": hours.mid,
        "predicted_device_hours_interval": hours.to_json(),
        "interval_note": "80%, from the calibration's spread widened for drift; never above what is left",
        "already_spent_device_hours": spent_s * num_devices / SECONDS_PER_HOUR,
        "budget_device_hours": limit.seconds * num_devices / SECONDS_PER_HOUR,
        "ruling_limit": limit.ruling_limit,
        "predicted_usd": budget.usd_for(hours.mid),
        "num_devices": num_devices,
        "device": str(workload.device),
        "threads": calibration.threads,
    }


def _counts(model: torch.nn.Module, traced: Trace | None) -> dict[str, int | None]:
    parameters = list(model.parameters())
    counts: dict[str, int | None] = {
        "num_params": sum(parameter.numel() for parameter in parameters),
        "num_trainable_params": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "forward_flops": None,
        "step_flops": None,
        "peak_memory_bytes": None,
    }
    if traced is not None:
        operations = traced.operations
        counts["forward_flops"] = operations.flops_in("forward", "loss", step=1)
        counts["step_flops"] = operations.flops_in("forward", "loss", "backward", "optimizer", step=1)
        counts["peak_memory_bytes"] = traced.log.peak_bytes
    return counts


def _reserve(calibration: Calibration) -> float:
    """What the guard will keep back at first, from the same durations."""
    reserve = FinishReserve(1.0 + calibration.final_evaluation_s / calibration.evaluation_s)
    reserve.add("evaluate", calibration.evaluation_s)
    reserve.add("checkpoint", calibration.save_s)
    return reserve.upper_s(1.5)
