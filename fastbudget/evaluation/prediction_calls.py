"""Calls of the user's ``predict``, split when memory runs out, and what comes back brought into one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..core.out_of_memory import is_out_of_memory, release_memory
from ..store.columns import as_values
from .example_data import take_rows


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What ``predict`` returned for some examples, and the largest batch that fitted after memory ran out."""

    predictions: Any
    largest_batch: int | None


@dataclass(frozen=True)
class PredictionCall:
    """``predict`` as a piece of work for an executor."""

    predict: Callable[[Any], Any]

    def __call__(self, work: tuple[Any, int, int | None]) -> Predicted:
        """Predict for (inputs, how many examples, the largest batch allowed)."""
        inputs, count, largest = work
        if count == 0:
            return Predicted(predictions=None, largest_batch=largest)
        size = count if largest is None else min(largest, count)
        found: list[Any] = []
        start = 0
        while start < count:
            stop = min(start + size, count)
            part = inputs if stop - start == count else take_rows(inputs, range(start, stop), count)
            try:
                found.append(_checked(self.predict(part), stop - start))
                start = stop
                continue
            except Exception as error:
                if not is_out_of_memory(error) or stop - start == 1:
                    raise
                release_memory(error)
            size = largest = (stop - start) // 2
        return Predicted(predictions=joined(found), largest_batch=largest)


def _checked(predictions: Any, count: int) -> Any:
    if predictions is None or not hasattr(predictions, "__len__") or isinstance(predictions, str | dict):
        raise InvalidInputError(
            f"predict must return one prediction per example (a tensor, an array or a list), got a "
            f"{type(predictions).__name__}; return its logits, say."
        )
    if getattr(predictions, "ndim", 1) == 0 or len(predictions) != count:
        shape = list(getattr(predictions, "shape", [len(predictions) if hasattr(predictions, "__len__") else 0]))
        raise InvalidInputError(
            f"predict must return as many predictions as it got examples: got {shape} for a batch of {count}. "
            "predictions and references must have the same length."
        )
    return predictions


def joined(parts: Sequence[Any]) -> Any:
    """Return the predictions of several batches as those of one."""
    if len(parts) == 1:
        return parts[0]
    if hasattr(parts[0], "detach"):
        import torch

        return torch.cat(list(parts))
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [prediction for part in parts for prediction in part]


def merged(count: int, rows: Sequence[tuple[npt.NDArray[np.int64], Any]]) -> Any:
    """Return predictions [count] put together from (which examples, their predictions)."""
    filled = [(where, what) for where, what in rows if len(where)]
    if len(filled) == 1 and np.array_equal(filled[0][0], np.arange(count)):
        return filled[0][1]
    order = np.argsort(np.concatenate([where for where, _ in filled]))
    values = [as_values(what) for _, what in filled]
    if len({value.shape[1:] for value in values}) == 1 and all(value.dtype != object for value in values):
        return np.concatenate(values)[order]
    items = [item for value in values for item in value]
    return [items[index] for index in order]


def nan_rows(predictions: Any) -> npt.NDArray[np.int64]:
    """Return the examples whose scores hold NaN. Logits per token are left to the metrics, which read them anyway."""
    if not hasattr(predictions, "dtype") or getattr(predictions, "ndim", 0) not in (1, 2):
        return np.zeros(0, np.int64)
    if hasattr(predictions, "detach"):
        found = predictions.detach().isnan()
        found = found if found.ndim == 1 else found.any(dim=1)
        return np.flatnonzero(found.cpu().numpy())
    if predictions.dtype.kind != "f":
        return np.zeros(0, np.int64)
    found = np.isnan(predictions)
    return np.flatnonzero(found if found.ndim == 1 else found.any(axis=1))


def top_two_gap(predictions: Any) -> npt.NDArray[np.float32] | None:
    """Return the margin of each classification, float32 [n]: the gap between its two largest class probabilities.

    None where predictions aren't scores [n, classes]. Scores that aren't probabilities are taken for logits.
    """
    if getattr(predictions, "ndim", 0) != 2 or predictions.shape[1] < 2:
        return None
    scores = as_values(predictions)
    if scores.dtype.kind != "f":
        return None
    scores = scores.astype(np.float64)
    if not (scores >= 0).all() or not np.allclose(scores.sum(axis=1), 1.0, atol=1e-3):
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    top = np.partition(scores, -2, axis=1)[:, -2:]
    return np.nan_to_num(top[:, 1] - top[:, 0]).astype(np.float32)
