"""How fast training goes and what it takes: step time, samples and tokens per second, MFU, memory, spend."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..budget import BudgetGuard
from ..core.errors import InvalidInputError
from ..cost import estimate
from ..cost.runtime.device_peaks import find_peak
from ..hardware import find_device
from .batches import call_model, first_tensor, move, num_samples
from .generators import generators_restored
from .losses import Loss
from .precision import Precision

_log = logging.getLogger(__name__)

# Between two records; making one takes some 50 us.
_EVERY_S = 1.0

_PEAKS = {"fp32": "fp32", "bf16-mixed": "bf16", "fp16-mixed": "fp16"}


class Throughput:
    """Adds up steps and, about every second of training, says how fast they were.

    Args:
        guard: Whose spending is told.
        device: Where the model is.
        peak_flops_per_s: The device's for the precision, see `peak_of`; None: unknown, and so is the MFU.
        flops_of: FLOPs of a step of one micro-batch, called once on the first one if the peak is known; see
            `estimated_flops`.
        num_ranks: Ranks that do the same as this one, to its samples.
    """

    def __init__(
        self,
        guard: BudgetGuard,
        device: torch.device,
        *,
        peak_flops_per_s: float | None = None,
        flops_of: Callable[[Any], float | None] | None = None,
        num_ranks: int = 1,
    ) -> None:
        self._guard, self._device, self._peak, self._flops_of = guard, device, peak_flops_per_s, flops_of
        self._num_ranks = num_ranks
        self._flops_per_unit: float | None = None
        self._steps = self._samples = self._tokens = 0
        self._seconds = 0.0
        self._first: Any = None

    def add(self, batches: Sequence[Any], seconds: float) -> None:
        """Take in a step: its micro-batches and how long it took, waiting for them included."""
        self._steps += 1
        self._seconds += seconds
        for batch in batches:
            # What batches mostly are is looked at here: a call costs as much at every step.
            kind = type(batch)
            first = batch[0] if kind is tuple and batch else next(iter(batch.values()), None) if kind is dict else None
            if type(first) is not torch.Tensor or not first.ndim:
                first = first_tensor(batch)
                if first is None:
                    continue
            shape = first.shape
            self._samples += shape[0]
            if len(shape) == 2 and not first.dtype.is_floating_point:
                self._tokens += shape[0] * shape[1]
        if self._flops_of is not None and self._first is None:
            self._first = batches[0]

    def is_due(self) -> bool:
        """Whether enough training has passed for a record."""
        return self._seconds >= _EVERY_S

    def record(self, step: int) -> dict[str, Any]:
        """Return the record of the steps since the last one, None for what is unknown."""
        seconds, self._seconds = self._seconds, 0.0
        steps, samples, tokens = self._steps, self._samples, self._tokens
        self._steps = self._samples = self._tokens = 0
        hours, budget = self._guard.spent_device_hours, self._guard.budget
        return {
            "step": step,
            "step_time_s": seconds / steps,
            "samples_per_s": samples * self._num_ranks / seconds,
            "tokens_per_s": tokens * self._num_ranks / seconds if tokens else None,
            "mfu": self._mfu(tokens or samples, seconds),
            "peak_memory_bytes": peak_memory_bytes(self._device),
            "spend": {"device_hours": hours, "usd": budget.usd_for(hours), "kwh": budget.kwh_for(hours)},
        }

    def _mfu(self, units: int, seconds: float) -> float | None:
        """Return model FLOPs' share of the peak; a unit is a token, else a sample."""
        if self._peak is None or self._flops_of is None:
            return None
        if self._first is not None and self._flops_per_unit is None:
            flops, first = self._flops_of(self._first), self._first
            if flops is None:
                self._flops_of = None
                return None
            leading = first_tensor(first)
            assert leading is not None
            is_tokens = leading.ndim == 2 and not leading.dtype.is_floating_point
            self._flops_per_unit = flops / (leading.numel() if is_tokens else num_samples(first))
        assert self._flops_per_unit is not None
        return self._flops_per_unit * units / seconds / self._peak


def peak_of(device: torch.device, precision: Precision) -> float | None:
    """Return a GPU's dense peak FLOP/s in the type its matrix products are computed in, None where it is unknown."""
    if device.type != "cuda":
        return None
    kind = _PEAKS[precision]
    if kind == "fp32" and torch.get_float32_matmul_precision() != "highest":
        kind = "tf32"
    try:
        return find_peak(find_device(torch.cuda.get_device_name(device)), kind).flops_per_s
    except InvalidInputError:
        return None


def estimated_flops(model: torch.nn.Module, loss: Loss, batch: Any, precision: Precision) -> float | None:
    """Return what `fb.estimate` says of one micro-batch's forward and backward; None if it can't trace the model."""
    try:
        with generators_restored():
            found = estimate(_ModelWithLoss(model, loss), (move(batch, torch.device("cpu")),), precision=precision)
    except Exception as error:  # a model that can't be traced trains all the same
        _log.info("The MFU is unknown, since the model's FLOPs are: %s", error)
        return None
    return float(found.step_flops)


class _ModelWithLoss(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> torch.Tensor:
        return self.loss(call_model(self.model, batch), batch)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak so far: of what PyTorch allocated on a GPU, on a CPU of what the process held."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
