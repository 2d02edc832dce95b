"""One pass over a data set, every metric fed batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import metrics as metrics_room
from ..core.errors import InvalidInputError
from ..metrics import Metric, MetricValue


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """What was measured: a value with interval per metric, on how many examples, in how many seconds."""

    values: dict[str, MetricValue]
    num_examples: int
    seconds: float

    def __getitem__(self, name: str) -> MetricValue:
        return self.values[name]

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data, metrics at the top level."""
        return {name: value.to_json() for name, value in self.values.items()} | {
            "num_examples": self.num_examples,
            "seconds": self.seconds,
        }


def _is_map_style(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping)


def _stack(values: list[Any]) -> Any:
    if hasattr(values[0], "detach"):
        import torch

        return torch.stack(values)
    return np.stack([np.asarray(value) for value in values])


def _batches(data: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Yield (inputs, references): a loader's batches as they come, a map-style data set's examples stacked."""
    if not _is_map_style(data) or (isinstance(data, list | tuple) and data and _is_batch(data[0])):
        for batch in data:
            if not isinstance(batch, list | tuple) or len(batch) != 2:
                raise InvalidInputError(
                    f"data must yield pairs (inputs, references), got a {type(batch).__name__}; wrap the loader."
                )
            yield batch[0], batch[1]
        return
    for start in range(0, len(data), batch_size):
        examples = [data[index] for index in range(start, min(start + batch_size, len(data)))]
        yield _stack([example[0] for example in examples]), _stack([example[1] for example in examples])


def _is_batch(item: Any) -> bool:
    """Whether an item of a list is a whole batch: its references have a batch dimension."""
    return isinstance(item, list | tuple) and len(item) == 2 and getattr(item[1], "ndim", 0) >= 1


def evaluate(
    predict: Callable[[Any], Any],
    data: Any,
    metrics: Sequence[str | Metric[Any]] | Mapping[str, Metric[Any]] = ("accuracy",),
    *,
    confidence: float = 0.95,
    groups: npt.NDArray[np.int64] | None = None,
    batch_size: int = 256,
    on_batch: Callable[[int], None] | None = None,
) -> EvaluationRecord:
    """Score predictions against references.

    Args:
        predict: ``predict(batch_inputs) -> predictions``: labels [B], scores [B, C], or logits [B, T, V], as the
            metrics take them. Numbers only; put a torch model in eval mode and under ``no_grad`` first.
        data: A re-iterable of batches ``(inputs, references)``, or a map-style data set ``data[i] -> (input,
            reference)`` of single examples. A list or tuple holds batches if its references have a batch dimension.
        metrics: Names, or metrics.
        confidence: Of the intervals.
        groups: int [n], equal for examples that belong together, for metrics that resample examples.
        batch_size: For map-style data.
        on_batch: Called with the number of examples scored so far.

    Raises:
        InvalidInputError: no example, no metric, an unknown metric, or predictions a metric can't take.
    """
    chosen = _resolve(metrics)
    start = time.perf_counter()
    states = {name: metric.init() for name, metric in chosen.items()}
    count = 0
    for inputs, references in _batches(data, batch_size):
        predictions = predict(inputs)
        for name, metric in chosen.items():
            states[name] = metric.update(states[name], predictions, references)
        count += len(references)
        if on_batch is not None:
            on_batch(count)
    if count == 0:
        raise InvalidInputError("data holds no example to evaluate on.")
    values = {
        name: metric.interval(states[name], confidence, groups if metric.task == "language_modeling" else None)
        for name, metric in chosen.items()
    }
    return EvaluationRecord(values=values, num_examples=count, seconds=time.perf_counter() - start)


def _resolve(metrics: Iterable[str | Metric[Any]] | Mapping[str, Metric[Any]]) -> dict[str, Metric[Any]]:
    if isinstance(metrics, str):
        raise InvalidInputError(f"metrics must be a list of names, got the text {metrics!r}; write [{metrics!r}].")
    if isinstance(metrics, Mapping):
        chosen = dict(metrics)
    else:
        chosen = {}
        for entry in metrics:
            metric = metrics_room.get(entry) if isinstance(entry, str) else entry
            chosen[metric.name or type(metric).__name__] = metric
    if not chosen:
        raise InvalidInputError("metrics must name at least one metric.")
    return chosen
