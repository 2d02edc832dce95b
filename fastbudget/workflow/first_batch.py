"""Does the workload run at all? One real batch through model, loss and metrics, before anything is planned."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..core.errors import FastbudgetError, InvalidInputError
from ..training import call_model, check_has_batches
from ..training.batches import move
from ..training.losses import check_scalar
from .workload import Workload

T = TypeVar("T")

_PACKAGE = str(Path(__file__).parents[1])


def check_first_batch(workload: Workload) -> None:
    """Run a training batch and a validation batch on a copy of the model.

    Raises:
        InvalidInputError: the model, the loss or a metric fails on them; the message holds the error and its place.
    """
    model = copy.deepcopy(workload.model).train()
    batch = move(check_has_batches(workload.train, "train"), workload.device)
    outputs = _explained(lambda: call_model(model, batch), "The model", "training", batch)
    loss = _explained(lambda: workload.loss(outputs, batch), "The loss", "training", batch, outputs)
    _explained(lambda: check_scalar(loss), "The loss", "training", batch, outputs)
    first = check_has_batches(workload.validation, "validation")
    model.eval()
    with torch.no_grad():
        _explained(lambda: workload.evaluate(model, [first]), "A metric", "validation", first)


def _explained(call: Callable[[], T], what: str, split: str, batch: Any, outputs: Any = None) -> T:
    try:
        return call()
    except FastbudgetError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, str(Path(torch.__file__).parent)))]
        place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
        given = f"The batch is {_describe(batch)}"
        given += f", the model's output {_describe(outputs)}" if outputs is not None else ""
        raise InvalidInputError(
            f"{what} fails on the first {split} batch: {type(error).__name__}: {error}{place}. {given}. "
            "Loaders must yield whole batches (inputs, targets) that the model and the loss take."
        ) from error


def _describe(value: Any) -> str:
    """Say of what kind and shape a batch is."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(_describe(item) for item in value) + ")"
    return type(value).__name__
