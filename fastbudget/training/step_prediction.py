"""What a step of the run at hand will need, by the estimator: the model, loss, optimizer and precision as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..core.errors import InvalidInputError
from ..cost import MARGIN, RecomputeChoice, Trace, find_blocks, on_device, smallest_recompute, trace_step
from ..hardware import find_device
from ..hardware.machine import memory_bytes
from .batches import call_model
from .losses import Loss

_PREFIX = "model."  # of the model's names in `_ModelWithLoss`


class StepPredictor:
    """Traces steps on fake tensors; nothing is allocated or changed.

    Args:
        model: As it is trained.
        loss: ``loss(outputs, batch) -> scalar``.
        optimizer: One of its kind and options is traced.
        precision: As the trainer's.
        device: Whose kernels and allocator are assumed: the CPU's or CUDA's.
        memory_limit_bytes: What a step's peak must stay within: of tensors on the CPU, of the whole process's device
            memory on a GPU. None: the device's memory, less a margin for what the estimate doesn't see.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        precision: str,
        device: torch.device,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self._model, self._with_loss = model, _ModelWithLoss(model, loss)
        self._optimizer = _same_kind(optimizer)
        self.precision, self._device = precision, device
        self.is_limit_given = memory_limit_bytes is not None
        self.limit_bytes = memory_limit_bytes or _usable_bytes(device)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the model's repeated blocks."""
        return tuple(find_blocks(self._model))

    def names_of(self, modules: Sequence[str]) -> tuple[str, ...]:
        """Return the names of modules given by name or by class."""
        return tuple(find_blocks(self._model, modules))

    def trace(
        self, batch: Any, *, recompute: Sequence[str] = (), accumulates: bool = False, precision: str | None = None
    ) -> Trace:
        """Return the trace of a step.

        Args:
            batch: A micro-batch.
            recompute: Names of modules of the model.
            accumulates: Whether gradients of micro-batches before are kept meanwhile.
            precision: Another than the run's.
        """
        return self._trace(batch, tuple(_PREFIX + name for name in recompute), accumulates, precision)

    def smallest_recompute(self, batch: Any, *, accumulates: bool = False) -> RecomputeChoice:
        """Return the fewest repeated blocks to recompute so that a step fits; see `cost.smallest_recompute`."""
        choice = smallest_recompute(
            lambda names: self._trace(batch, names, accumulates, None),
            [_PREFIX + name for name in self.blocks],
            limit_bytes=self.limit_bytes,
            peak_of=self.peak_bytes,
        )
        return replace(choice, blocks=tuple(name.removeprefix(_PREFIX) for name in choice.blocks))

    def peak_bytes(self, trace: Trace) -> int:
        """Return the peak to compare with ``limit_bytes``."""
        if self._device.type == "cpu":
            return trace.log.peak_bytes
        try:
            device = find_device(torch.cuda.get_device_name(self._device))
        except InvalidInputError:
            device = None
        return on_device(trace.log, device).device_bytes

    def _trace(self, batch: Any, recompute: tuple[str, ...], accumulates: bool, precision: str | None) -> Trace:
        return trace_step(
            self._with_loss,
            (batch,),
            optimizer=self._optimizer,
            precision=precision or self.precision,
            recompute=recompute,
            grad_accumulation=2 if accumulates else 1,
            kernels=self._device.type,
        )


class _ModelWithLoss(torch.nn.Module):
    """A batch in, its loss out."""

    def __init__(self, model: torch.nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Any) -> torch.Tensor:
        return self._loss(call_model(self.model, batch), batch)


def _same_kind(optimizer: torch.optim.Optimizer) -> Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]:
    """Return a function that makes an optimizer of the same class and options for other parameters."""
    kind: Any = type(optimizer)
    accepted = inspect.signature(kind).parameters
    options = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return lambda parameters: kind([p for p in parameters if p.requires_grad], **options)


def _usable_bytes(device: torch.device) -> int:
    on_cuda = device.type == "cuda"
    total = torch.cuda.get_device_properties(device).total_memory if on_cuda else memory_bytes()
    return int(total / (1 + MARGIN))
