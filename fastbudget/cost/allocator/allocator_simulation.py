"""What PyTorch's CUDA caching allocator would hold while a sequence of tensors lives and dies, without a GPU.

The simulation follows torch/c10/cuda/CUDACachingAllocator.cpp for one device and one stream. It leaves
out CUDA graph pools, blocks that wait for other streams, and garbage collection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...core.errors import InvalidInputError
from .. import _native
from .allocator_settings import AllocatorConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

Events = npt.NDArray[np.int64]
_MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorReplay:
    """The allocator's peaks over a sequence of events. Never compare allocated with reserved bytes.

    Attributes:
        peak_allocated_bytes: Blocks in use, as PyTorch rounds them; ``torch.cuda.max_memory_allocated()``.
        peak_active_bytes: The same plus blocks that wait for other streams: none, as one is simulated.
        peak_reserved_bytes: Memory taken from the device; ``torch.cuda.max_memory_reserved()``.
        peak_requested_bytes: What the tensors asked for, unrounded.
        reserved_at_peak_bytes: Reserved when allocated was at its peak; at most ``peak_reserved_bytes``.
        final_allocated_bytes: Allocated at the end.
        final_reserved_bytes: Reserved at the end; when memory ran out, what the last attempt left cached.
        event_at_peak: Index of the first event with allocated at its peak; None when nothing was allocated.
        event_at_reserved_peak: The same for reserved.
        out_of_memory_event: Index of the allocation that failed, where the replay ends; None when all fit.
        num_segments: Times memory was taken from the device: segments, or page mappings of expandable ones.
        num_releases: Times memory was given back to the device.
        num_splits: Blocks that were split.
        num_retries: Allocations that first had to give back every cached segment, which stalls the GPU.
        allocated: Allocated bytes after each event replayed, int64 [E]; None without ``timeline``.
        reserved: Reserved bytes, likewise.
    """

    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    reserved_at_peak_bytes: int
    final_allocated_bytes: int
    final_reserved_bytes: int
    event_at_peak: int | None
    event_at_reserved_peak: int | None
    out_of_memory_event: int | None
    num_segments: int
    num_releases: int
    num_splits: int
    num_retries: int
    allocated: Events | None = field(default=None, compare=False, repr=False)
    reserved: Events | None = field(default=None, compare=False, repr=False)

    @property
    def fits(self) -> bool:
        """Whether every allocation succeeded."""
        return self.out_of_memory_event is None

    @property
    def fragmentation(self) -> float | None:
        """The share of the reserved peak that the allocated peak leaves unused, in [0, 1)."""
        if self.peak_reserved_bytes == 0:
            return None
        return 1.0 - self.peak_allocated_bytes / self.peak_reserved_bytes


def _as_events(values: Events | Sequence[int], name: str) -> Events:
    array = np.asarray(values)
    if array.ndim != 1:
        raise InvalidInputError(f"{name} must be one-dimensional, got shape {array.shape}.")
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidInputError(f"{name} must hold integers that fit int64, got dtype {array.dtype}.")
    if array.dtype == np.uint64 and (too_large := np.flatnonzero(array > np.iinfo(np.int64).max)).size:
        raise InvalidInputError(f"{name} must fit int64, but event {too_large[0]} is {array[too_large[0]]}.")
    return np.ascontiguousarray(array, dtype=np.int64)


def simulate_allocator(
    storage: Events | Sequence[int],
    delta_bytes: Events | Sequence[int],
    config: AllocatorConfig | None = None,
    *,
    capacity_bytes: int | None = None,
    timeline: bool = False,
) -> AllocatorReplay:
    """Replay allocations and frees through PyTorch's caching allocator.

    Args:
        storage: Storage numbers, int64 [E]; unique among those alive.
        delta_bytes: Int64 [E]. Above 0: the storage is allocated with that many requested, unrounded bytes.
            Below 0: it is freed, minus its bytes. 0: an empty storage, for which PyTorch allocates nothing.
        config: The allocator's options; None means PyTorch's defaults, whatever the environment says.
        capacity_bytes: What the allocator may reserve: the device's memory less the CUDA context and whatever
            else lives there. None: no limit.
        timeline: Also return allocated and reserved bytes after each event.

    Raises:
        InvalidInputError: an event makes no sense (a storage allocated twice, freed while unknown or by
            another size, or sizes beyond 2^56 bytes; the message has its index), or ``capacity_bytes`` is not
            above 0.
    """
    config = AllocatorConfig() if config is None else config
    if capacity_bytes is not None and (isinstance(capacity_bytes, bool) or not isinstance(capacity_bytes, int)):
        raise InvalidInputError(f"capacity_bytes must be an integer or None, got {capacity_bytes!r}.")
    if capacity_bytes is not None and not 0 < capacity_bytes <= 2**56:
        raise InvalidInputError(f"capacity_bytes must be in [1, 2**56], or None for no limit, got {capacity_bytes}.")
    rounding_mb = config.max_non_split_rounding_mb or config.large_segment_size_mb
    found, timelines = _native.replay_allocations(
        _as_events(storage, "storage"),
        _as_events(delta_bytes, "delta_bytes"),
        expandable_segments=config.expandable_segments,
        max_split_size_bytes=-1 if config.max_split_size_mb is None else config.max_split_size_mb * _MEBIBYTE,
        capacity_bytes=-1 if capacity_bytes is None else capacity_bytes,
        roundup_power2_divisions=config.roundup_power2_divisions,
        max_non_split_rounding_bytes=rounding_mb * _MEBIBYTE,
        large_segment_bytes=config.large_segment_size_mb * _MEBIBYTE,
        timeline=timeline,
    )
    return AllocatorReplay(
        peak_allocated_bytes=found["peak_allocated_bytes"],
        peak_active_bytes=found["peak_active_bytes"],
        peak_reserved_bytes=found["peak_reserved_bytes"],
        peak_requested_bytes=found["peak_requested_bytes"],
        reserved_at_peak_bytes=found["reserved_at_peak_bytes"],
        final_allocated_bytes=found["final_allocated_bytes"],
        final_reserved_bytes=found["final_reserved_bytes"],
        event_at_peak=_event(found["event_at_peak"]),
        event_at_reserved_peak=_event(found["event_at_reserved_peak"]),
        out_of_memory_event=_event(found["out_of_memory_event"]),
        num_segments=found["num_segments"],
        num_releases=found["num_releases"],
        num_splits=found["num_splits"],
        num_retries=found["num_retries"],
        allocated=timelines.get("allocated"),
        reserved=timelines.get("reserved"),
    )


def _event(index: int) -> int | None:
    return None if index < 0 else index
