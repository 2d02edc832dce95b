"""Several tasks evaluated in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from .. import metrics as metrics_room
from ..core.errors import FastbudgetError, InvalidInputError
from ..core.executor import Executor, ordered_results
from ..metrics import Metric, MetricValue
from ..stats import ConfidenceInterval, mean_of_groups
from .evaluator import evaluate
from .records import EvaluationRecord
from .tiers import Tier


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of a suite.

    Args:
        name: In the results; each once.
        data: As for `fb.evaluate`.
        metrics: Names, or metrics; None: those that suit ``type``.
        type: As `fb.metrics.list` has it: ``"classification"``, ``"regression"``, ``"summarization"``, ….
        predict: For a task that needs another callable than the suite's.
        tier: For a task that needs another tier than the suite's.
        options: More keywords for `fb.evaluate`, such as ``collate``.
    """

    name: str
    data: Any
    metrics: Sequence[str | Metric[Any]] | None = None
    type: str = "classification"
    predict: Callable[[Any], Any] | None = None
    tier: str | Tier | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


_METRICS_BY_TYPE = {
    "classification": ("accuracy",),
    "regression": ("mse", "mae"),
    "language_modeling": ("nll",),
    "summarization": ("rougeL",),
    "text_generation": ("chrf",),
    "question_answering": ("exact_match", "token_f1"),
    "speech_recognition": ("wer",),
}


@dataclass(frozen=True, kw_only=True)
class SuiteRecord:
    """What a suite found.

    Attributes:
        tasks: By name, in the order given.
        macro: By metric: the mean over the tasks that have it, all counting alike.
        micro: By metric that is a mean over examples: the mean over all examples of the tasks that have it, estimated
            where a task's tier draws a sample.
        failed: The error of each task that has no result, by name. Aggregates are then empty: a mean of the rest would
            be another quantity.
        seconds: Wall time.
    """

    tasks: dict[str, EvaluationRecord]
    macro: dict[str, ConfidenceInterval]
    micro: dict[str, ConfidenceInterval]
    failed: dict[str, str]
    seconds: float

    def __getitem__(self, name: str) -> EvaluationRecord:
        return self.tasks[name]

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return {
            "tasks": {name: record.to_json() for name, record in self.tasks.items()},
            "macro": {name: mean.to_json() for name, mean in self.macro.items()},
            "micro": {name: mean.to_json() for name, mean in self.micro.items()},
            "failed": dict(self.failed),
            "seconds": self.seconds,
        }


def evaluate_suite(
    predict: Callable[[Any], Any] | None,
    tasks: Sequence[Task],
    *,
    tier: str | Tier = "full",
    executor: Executor | None = None,
    keep_going: bool = False,
    confidence: float = 0.95,
    **options: Any,
) -> SuiteRecord:
    """Evaluate several tasks and aggregate them.

    Args:
        predict: As for `fb.evaluate`; None if every task has its own.
        tasks: Each is independent of the others: the aggregates' errors assume so.
        tier: For all tasks that name none.
        executor: Where tasks run side by side, such as ``ThreadPoolExecutor(2)``; None: one after the other, here.
            ``predict`` must stand being called from several threads, or be picklable for processes.
        keep_going: Whether the error of one task leaves the others their results; False: it is raised.
        confidence: Of all intervals.
        options: For `fb.evaluate` of every task: ``store``, ``model_key``, ``batch_size``, ….

    Raises:
        InvalidInputError: no task, a name twice, no predict, or what a task's evaluation raises, with its name.
    """
    start = time.perf_counter()
    _check(predict, tasks)
    work = [
        (task.name, (task, task.predict or predict, tier, {"confidence": confidence, **options}, keep_going))
        for task in tasks
    ]
    results = dict(ordered_results(executor, _evaluate_task, work))
    records = {name: result for name, result in results.items() if isinstance(result, EvaluationRecord)}
    failed = {name: result for name, result in results.items() if isinstance(result, str)}
    macro: dict[str, ConfidenceInterval] = {}
    micro: dict[str, ConfidenceInterval] = {}
    if not failed:
        for metric in dict.fromkeys(name for record in records.values() for name in record.values):
            having = [record for record in records.values() if metric in record.values]
            found = [record.values[metric] for record in having]
            means, ses = [value.value for value in found], [standard_error(value) for value in found]
            # A task counts by its examples, however few of them its tier drew.
            sizes = [record.population_size or record.num_examples for record in having]
            macro[metric] = mean_of_groups(means, ses, sizes, average="macro", confidence=confidence)
            if all(_is_mean(metric, task) for task in tasks if metric in records[task.name].values):
                micro[metric] = mean_of_groups(means, ses, sizes, average="micro", confidence=confidence)
    return SuiteRecord(tasks=records, macro=macro, micro=micro, failed=failed, seconds=time.perf_counter() - start)


def standard_error(value: MetricValue) -> float:
    """Return the standard error that an interval's width tells: above zero even where no error was seen."""
    return (value.high - value.low) / (2 * NormalDist().inv_cdf(0.5 + value.confidence / 2))


def _check(predict: Any, tasks: Sequence[Task]) -> None:
    names = [task.name for task in tasks]
    if not tasks or len(set(names)) < len(names):
        raise InvalidInputError(f"tasks must hold at least one and each name once, got {names}.")
    for task in tasks:
        if task.predict is None and predict is None:
            raise InvalidInputError(f"Task {task.name!r} has no predict, and the suite has none either.")
        if task.metrics is None and task.type not in _METRICS_BY_TYPE:
            raise InvalidInputError(
                f"Task {task.name!r} must name its metrics: there are none by default for the type {task.type!r} "
                f"(there are for {', '.join(map(repr, _METRICS_BY_TYPE))})."
            )


def _evaluate_task(
    work: tuple[Task, Callable[[Any], Any] | None, str | Tier, dict[str, Any], bool],
) -> EvaluationRecord | str:
    task, predict, tier, options, keep_going = work
    assert predict is not None
    try:
        return evaluate(predict, task.data, _metrics_of(task), task.tier or tier, **(options | dict(task.options)))
    except Exception as error:
        if keep_going:
            return f"{type(error).__name__}: {error}"
        if isinstance(error, FastbudgetError):
            raise InvalidInputError(f"Task {task.name!r}: {error}") from error
        raise


def _metrics_of(task: Task) -> Sequence[str | Metric[Any]]:
    return task.metrics if task.metrics is not None else _METRICS_BY_TYPE[task.type]


def _is_mean(name: str, task: Task) -> bool:
    for metric in _metrics_of(task):
        found = metrics_room.get(metric) if isinstance(metric, str) else metric
        if (found.name or type(found).__name__) == name:
            return found.is_mean
    return False
