"""What a traced step needs in memory: the peak, what it is made of, and how it gets there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .device_memory import MARGIN, DeviceMemory
from .trace.allocation_log import CATEGORIES, PHASES, AllocationLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .trace.operation_table import OperationTable

LARGEST_TENSORS_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class PeakTensor:
    """A storage that was alive at the peak.

    Attributes:
        size_bytes: its size.
        category: one of ``CATEGORIES``.
        module: qualified name of the module that made it; empty for the model itself or the loss.
        operation: the operation that made it, such as ``aten.mm.default``; None for parameters and inputs
            given.
        phase: the phase in which it was made, one of ``PHASES``.
    """

    size_bytes: int
    category: str
    module: str
    operation: str | None
    phase: str


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline:
    """Bytes alive over E events.

    Attributes:
        category_bytes: int64 [len(CATEGORIES), E].
        phase: uint8 [E], an index into ``PHASES``.
        event_at_peak: the event after which most bytes are alive.
    """

    category_bytes: NDArray[np.int64]
    phase: NDArray[np.uint8]
    event_at_peak: int

    @property
    def total_bytes(self) -> NDArray[np.int64]:
        """int64 [E]: bytes alive after each event."""
        return self.category_bytes.sum(axis=0)


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Peak memory of a step on one rank. The four numbers are different things and never compared with each other.

    On the CPU, ``allocated_bytes`` are unrounded and the other three None. On a GPU it is what
    ``torch.cuda.max_memory_allocated`` reports.

    Attributes:
        allocated_bytes: the most bytes of tensors alive at once.
        active_bytes: the same, and blocks that wait for other streams.
        reserved_bytes: what the caching allocator holds from the device at most.
        device_bytes: reserved bytes and what the process needs besides.
        capacity_bytes: the device's memory; None where none was named.
        fits: ``"yes"``, ``"no"``, ``"at risk"`` (within ``margin``); None without a capacity.
        margin: relative error that the verdict allows for.
        by_category: unrounded bytes at the peak for each of ``CATEGORIES``.
        phase_at_peak: the phase in which the peak occurs, one of ``PHASES``.
        largest_at_peak: the largest tensors alive at the peak.
        timeline: bytes by category over the whole trace.
        notes: what was computed instead of traced.
    """

    allocated_bytes: int
    active_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    capacity_bytes: int | None
    fits: str | None
    margin: float | None
    by_category: dict[str, int]
    phase_at_peak: str
    largest_at_peak: tuple[PeakTensor, ...]
    timeline: MemoryTimeline
    notes: tuple[str, ...] = ()
    search: Callable[[], int] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def largest_micro_batch(self) -> int | None:
        """The most samples in a micro-batch with the verdict ``"yes"`` or ``"at risk"``; 0 if not even one.

        Traces other batch sizes when first asked for. None where no device was named.
        """
        return None if self.search is None else self.search()


def estimate_memory(
    log: AllocationLog,
    operations: OperationTable,
    on_gpu: DeviceMemory | None = None,
    *,
    notes: tuple[str, ...] = (),
    search: Callable[[], int] | None = None,
) -> MemoryEstimate:
    """Summarize a log of allocations, replayed on a GPU or as it is."""
    peak = log.event_at_peak
    return MemoryEstimate(
        allocated_bytes=log.peak_bytes if on_gpu is None else on_gpu.allocated_bytes,
        active_bytes=None if on_gpu is None else on_gpu.active_bytes,
        reserved_bytes=None if on_gpu is None else on_gpu.reserved_bytes,
        device_bytes=None if on_gpu is None else on_gpu.device_bytes,
        capacity_bytes=None if on_gpu is None else on_gpu.capacity_bytes,
        fits=None if on_gpu is None else on_gpu.fits,
        margin=None if on_gpu is None or on_gpu.capacity_bytes is None else MARGIN,
        by_category=log.bytes_by_category(peak) if peak >= 0 else dict.fromkeys(CATEGORIES, 0),
        phase_at_peak=PHASES[int(log.phase[peak])] if peak >= 0 else PHASES[0],
        largest_at_peak=tuple(
            _peak_tensor(log, operations, int(number)) for number in log.live_storages(peak)[:LARGEST_TENSORS_SHOWN]
        ),
        timeline=_timeline(log),
        notes=notes,
        search=search,
    )


def _peak_tensor(log: AllocationLog, operations: OperationTable, number: int) -> PeakTensor:
    row = int(log.operation[number])
    return PeakTensor(
        size_bytes=int(log.size_bytes[number]),
        category=CATEGORIES[int(log.category[number])],
        module=log.modules[int(log.module[number])],
        operation=None if row < 0 else operations.names[int(operations.name[row])],
        phase=PHASES[int(log.birth_phase[number])],
    )


def _timeline(log: AllocationLog) -> MemoryTimeline:
    changes = np.zeros((len(CATEGORIES), len(log.storage)), dtype=np.int64)
    changes[log.category[log.storage], np.arange(len(log.storage))] = log.delta_bytes
    return MemoryTimeline(category_bytes=np.cumsum(changes, axis=1), phase=log.phase, event_at_peak=log.event_at_peak)
