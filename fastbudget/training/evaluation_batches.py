"""Evaluations that run out of memory: called again with a smaller batch of their own."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..core.errors import OutOfMemoryError
from ..core.out_of_memory import is_out_of_memory, release_memory

_log = logging.getLogger("fastbudget.training")

PARAMETER = "batch_size"


class EvaluationBatches:
    """Calls a function of the model, halving its ``batch_size`` each time memory runs out; training's stays as it is.

    Args:
        function: ``function(model)``, or ``function(model, batch_size=…)`` with a default of at least 1. What a smaller
            batch size was needed for is remembered for the calls that follow.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.size = _default_size(function)
        self._is_smaller = False

    def call(self, model: torch.nn.Module, surroundings: Callable[[], AbstractContextManager[Any]]) -> Any:
        """Return the function's result for the model, each attempt in surroundings of its own.

        Raises:
            OutOfMemoryError: memory ran out, and the function takes no batch size or one example is too many.
        """
        while True:
            try:
                with surroundings():
                    return self._function(model, **({PARAMETER: self.size} if self._is_smaller else {}))
            except Exception as error:
                if not is_out_of_memory(error) or isinstance(error, OutOfMemoryError):
                    raise
                failed = error
            text = release_memory(failed)
            del failed
            if self.size is None:
                raise OutOfMemoryError(
                    f"An evaluation ran out of memory ({text}). Give the function a parameter batch_size with a "
                    "default number, which is then halved, or let it use smaller batches. Training's are not the cause."
                )
            if self.size <= 1:
                raise OutOfMemoryError(f"An evaluation runs out of memory with one example at a time ({text}).")
            self.size, self._is_smaller = self.size // 2, True
            _log.warning(
                "An evaluation ran out of memory (%s); it is repeated with batch_size=%d. Training is not changed.",
                text.splitlines()[0],
                self.size,
            )


def _default_size(function: Callable[..., Any]) -> int | None:
    try:
        parameter = inspect.signature(function).parameters.get(PARAMETER)
    except (TypeError, ValueError):  # a builtin
        return None
    default = None if parameter is None else parameter.default
    return default if isinstance(default, int) and not isinstance(default, bool) and default >= 1 else None
