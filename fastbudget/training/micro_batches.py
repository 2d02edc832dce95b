"""A step cut into micro-batches, and taken again with smaller ones where memory runs out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core.errors import InvalidInputError, OutOfMemoryError
from ..core.out_of_memory import is_out_of_memory, release_memory
from ..cost import running_statistics
from .batch_splitting import split_batch
from .batches import num_samples
from .generators import generator_states, set_generator_states

_log = logging.getLogger("fastbudget.training")

# Python's and NumPy's generators take 30 µs to copy, too much for steps shorter than this; torch's takes less than one.
_SHORT_STEP_S = 5e-3


class MicroBatches:
    """Computes gradients in micro-batches of at most ``size`` samples, and halves ``size`` when memory runs out.

    A step that is taken again is as if it had been taken once: the same batches, the same random numbers, no gradient
    or batch-norm statistic of the failed attempt; its loss is that of the whole batch, as before. (Steps below
    5 ms draw the same numbers from torch's generators only.)

    Args:
        model: Trained.
        optimizer: Of its parameters; their gradients are None before each step.
        size: None: batches are taken as they come until memory runs out.

    ``advice(batch)``, where set, says what would fit once nothing helps.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, size: int | None = None) -> None:
        self.size = size
        self.advice: Callable[[Any], str] | None = None
        self._optimizer = optimizer
        self._on_cuda = any(parameter.is_cuda for parameter in model.parameters())
        self._statistics = running_statistics(model)
        self._step_s = 1.0

    def backward(self, backward: Callable[[Sequence[Any]], torch.Tensor], batches: Sequence[Any]) -> torch.Tensor:
        """Return ``backward(micro_batches)``, the loss of all batches together.

        Raises:
            OutOfMemoryError: even one sample at a time doesn't fit, or a batch can't be cut.
        """
        began = time.perf_counter()
        generators = generator_states() if self._step_s > _SHORT_STEP_S else _torch_states(self._on_cuda)
        statistics = [buffer.clone() for buffer in self._statistics] if self._statistics else []
        while True:
            try:
                loss = backward(batches if self.size is None else self.split(batches))
                self._step_s = time.perf_counter() - began
                return loss
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failed = error
            # Outside of the handler, where nothing but `failed` holds the failed attempt's tensors.
            text = release_memory(failed)
            del failed
            self._optimizer.zero_grad(set_to_none=True)
            _set_states(generators)
            for buffer, before in zip(self._statistics, statistics, strict=True):
                buffer.copy_(before)
            self._halve(batches, text)

    def split(self, batches: Sequence[Any]) -> list[Any]:
        """Return the batches' micro-batches."""
        assert self.size is not None
        return [part for batch in batches for part in split_batch(batch, self.size)]

    def _halve(self, batches: Sequence[Any], text: str) -> None:
        samples = max(num_samples(batch) for batch in batches)
        largest = samples if self.size is None else min(self.size, samples)
        if largest <= 1:
            raise OutOfMemoryError(
                f"A step runs out of memory with one sample at a time ({text}). {self._advice(batches[0])}"
                "The checkpoints saved before are kept."
            )
        self.size = largest // 2
        try:
            self.split(batches)
        except InvalidInputError as error:
            raise OutOfMemoryError(
                f"A step ran out of memory ({text}), and its batch can't be halved. {error}"
            ) from error
        norms = " Batch norms see fewer samples at a time from now on." if self._statistics else ""
        _log.warning(
            "A step ran out of memory (%s). It, and those that follow, are taken in micro-batches of %d instead of %d "
            "samples; the batch of a step stays the same.%s",
            text.splitlines()[0],
            self.size,
            largest,
            norms,
        )

    def _advice(self, batch: Any) -> str:
        if self.advice is None:
            return ""
        try:
            return f"{self.advice(batch)} "
        except Exception as error:  # a model that can't be traced; the memory is what matters here
            return f"(What would fit can't be predicted: {error}) "


def _torch_states(on_cuda: bool) -> dict[str, Any]:
    return generator_states() if on_cuda else {"torch": torch.default_generator.get_state()}


def _set_states(states: dict[str, Any]) -> None:
    if len(states) == 1:
        torch.set_rng_state(states["torch"])
    else:
        set_generator_states(states)
