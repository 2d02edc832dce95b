"""The registry of metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.errors import InvalidInputError
from ..core.registry import Registry
from .metric_protocol import Metric

_METRICS: Registry[tuple[str, Callable[..., Metric[Any]]]] = Registry("metric")


def register(name: str, *, task: str) -> Callable[[Callable[..., Metric[Any]]], Callable[..., Metric[Any]]]:
    """Register a metric class, or a function that makes one from keyword options, under a name.

    Args:
        name: What users write.
        task: ``"classification"``, ``"language_modeling"``, … for `list`.
    """

    def add(factory: Callable[..., Metric[Any]]) -> Callable[..., Metric[Any]]:
        _METRICS.add(name, (task, factory))
        return factory

    return add


def get(name: str, **options: Any) -> Metric[Any]:
    """Return a metric by name.

    Raises:
        InvalidInputError: unknown name (the message suggests one) or an option the metric doesn't have.
    """
    task, factory = _METRICS.get(name)
    try:
        metric = factory(**options)
    except TypeError as error:
        raise InvalidInputError(f"Metric {name!r} doesn't take these options: {options} ({error}).") from error
    metric.name, metric.task = name, task
    return metric


def list_metrics(task: str | None = None) -> tuple[str, ...]:
    """Return the names of all metrics, or of one task's."""
    return tuple(name for name in _METRICS if task is None or _METRICS.get(name)[0] == task)
