"""Several metrics over one pass: the input is read, tokenized and counted once for all that share it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ..core.errors import InvalidInputError, did_you_mean, one_of
from .metric_protocol import BatchMetric, FloatArray, Metric, MetricValue
from .registered import get

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "classification": {"accuracy": {}, "balanced_accuracy": {}, "f1_macro": {}, "mcc": {}},
    "text_generation": {"bleu": {}, "chrf": {}, "rougeL": {}, "meteor": {}, "distinct_n": {}},
    "summarization": {
        "rouge1": {"stemmer": True},
        "rouge2": {"stemmer": True},
        "rougeL": {"stemmer": True},
        "rougeLsum": {"stemmer": True},
        "content_overlap": {},
    },
    "language_modeling": {"nll": {}, "perplexity": {}, "token_accuracy": {}},
}

States = dict[Hashable, Any]


class MetricSet:
    """Metrics that are fed together; states merge as those of single metrics do.

    Args:
        metrics: Names, metrics, or a mapping from names of your own to metrics.
    """

    def __init__(self, metrics: Sequence[str | Metric[Any]] | Mapping[str, Metric[Any]]) -> None:
        if isinstance(metrics, str):
            raise InvalidInputError(f"metrics must be a list of names, got the text {metrics!r}; write [{metrics!r}].")
        self.metrics: dict[str, Metric[Any]] = {}
        for name, metric in metrics.items() if isinstance(metrics, Mapping) else ((None, m) for m in metrics):
            made = get(metric) if isinstance(metric, str) else metric
            key = name or made.name or type(made).__name__
            if key in self.metrics:
                raise InvalidInputError(f"Two metrics are called {key!r}; give a mapping with names of your own.")
            self.metrics[key] = made
        if not self.metrics:
            raise InvalidInputError("metrics must name at least one metric.")
        self._state_of: dict[str, Hashable] = {
            name: (metric.state_key if isinstance(metric, BatchMetric) else None) or ("own", name)
            for name, metric in self.metrics.items()
        }

    def init(self) -> States:
        """Return the states of no examples."""
        return {self._state_of[name]: metric.init() for name, metric in self.metrics.items()}

    def state(self, states: States, name: str) -> Any:
        """Return one metric's own state."""
        return states[self._state_of[name]]

    def update(self, states: States, predictions: Any, references: Any, ids: Any = None) -> States:
        """Add a batch to every metric; see `Metric.update`. An error leaves the states of earlier metrics changed."""
        read: dict[Hashable, Any] = {}
        updated: States = {}
        for name, metric in self.metrics.items():
            key = self._state_of[name]
            if key in updated:
                continue
            if isinstance(metric, BatchMetric):
                if metric.input_key not in read:
                    read[metric.input_key] = metric.read(predictions, references)
                updated[key] = metric.add(states[key], read[metric.input_key], ids)
            else:
                updated[key] = metric.update(states[key], predictions, references, ids)
        return updated

    def merge(self, a: States, b: States) -> States:
        """Return the states of both sets of examples."""
        merged: States = {}
        for name, metric in self.metrics.items():
            key = self._state_of[name]
            if key not in merged:
                merged[key] = metric.merge(a[key], b[key])
        return merged

    def result(self, states: States) -> dict[str, Any]:
        """Return every metric's value by name."""
        return {name: metric.result(self.state(states, name)) for name, metric in self.metrics.items()}

    def interval(self, states: States, confidence: float = 0.95, groups: Any = None) -> dict[str, MetricValue]:
        """Return every metric's value with its interval by name; see `Metric.interval`."""
        return {
            name: metric.interval(self.state(states, name), confidence, groups) for name, metric in self.metrics.items()
        }

    def per_example(self, predictions: Any, references: Any) -> dict[str, FloatArray]:
        """Return the per-example values of those metrics that have them."""
        values = {}
        for name, metric in self.metrics.items():
            if type(metric).per_example is not Metric.per_example:
                values[name] = metric.per_example(predictions, references)
        return values

    def __call__(self, predictions: Any, references: Any) -> dict[str, Any]:
        """Return every metric's value over everything given."""
        return self.result(self.update(self.init(), predictions, references))


def preset(task: str) -> MetricSet:
    """Return the metrics usually reported for a task: those of ``PRESETS``.

    Args:
        task: ``"classification"``, ``"text_generation"``, ``"summarization"`` or ``"language_modeling"``.

    Raises:
        InvalidInputError: another task.
    """
    if task not in PRESETS:
        raise InvalidInputError(f"task must be one of {one_of(PRESETS)}, got {task!r}.{did_you_mean(task, PRESETS)}")
    return MetricSet({name: get(name, **options) for name, options in PRESETS[task].items()})
