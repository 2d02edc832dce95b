"""What a traced step needs in memory: the peak, what it is made of, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .allocation_log import CATEGORIES, PHASES, AllocationLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .operation_table import OperationTable

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
    """Peak memory of a step. The four numbers are different things and never compared with each other.

    Attributes:
        allocated_bytes: the most bytes of tensors alive at once, unrounded.
        active_bytes: the same in the blocks of a caching allocator; None where it was not simulated.
        reserved_bytes: what a caching allocator holds from the device at most; None likewise.
        device_bytes: reserved bytes and what the process needs besides; None likewise.
        by_category: bytes at the peak for each of ``CATEGORIES``.
        phase_at_peak: the phase in which the peak occurs, one of ``PHASES``.
        largest_at_peak: the largest tensors alive at the peak.
        timeline: bytes by category over the whole trace.
    """

    allocated_bytes: int
    active_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    by_category: dict[str, int]
    phase_at_peak: str
    largest_at_peak: tuple[PeakTensor, ...]
    timeline: MemoryTimeline


def estimate_memory(log: AllocationLog, operations: OperationTable) -> MemoryEstimate:
    """Summarize a log of allocations."""
    peak = log.event_at_peak
    return MemoryEstimate(
        allocated_bytes=log.peak_bytes,
        # The seam for the allocator simulation: it replays (log.storage, log.delta_bytes) and knows these
        # three.
        active_bytes=None,
        reserved_bytes=None,
        device_bytes=None,
        by_category=log.bytes_by_category(peak) if peak >= 0 else dict.fromkeys(CATEGORIES, 0),
        phase_at_peak=PHASES[int(log.phase[peak])] if peak >= 0 else PHASES[0],
        largest_at_peak=tuple(
            _peak_tensor(log, operations, int(number)) for number in log.live_storages(peak)[:LARGEST_TENSORS_SHOWN]
        ),
        timeline=_timeline(log),
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
