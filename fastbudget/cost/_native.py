"""The one door of this room to the compiled module: allocation events in, bytes held out."""

from __future__ import annotations

from typing import Any, TypedDict, cast

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, not_compiled

try:
    from .. import _C
except ImportError as error:
    raise not_compiled(error) from error

Events = npt.NDArray[np.int64]


class Replay(TypedDict):
    """What the native replay returns. -1 stands for an event that never came."""

    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    final_allocated_bytes: int
    final_reserved_bytes: int
    final_requested_bytes: int
    reserved_at_peak_bytes: int
    event_at_peak: int
    event_at_reserved_peak: int
    out_of_memory_event: int
    num_segments: int
    num_releases: int
    num_splits: int
    num_retries: int


class Timelines(TypedDict, total=False):
    """What it adds on request, int64 [events replayed]."""

    allocated: Events
    reserved: Events
    address: Events


def replay_allocations(
    storage: Events,
    delta_bytes: Events,
    *,
    expandable_segments: bool = False,
    max_split_size_bytes: int = -1,
    capacity_bytes: int = -1,
    roundup_power2_divisions: int | tuple[int, ...] = 0,
    max_non_split_rounding_bytes: int = 20 * 2**20,
    large_segment_bytes: int = 20 * 2**20,
    timeline: bool = False,
    addresses: bool = False,
) -> tuple[Replay, Timelines]:
    """Replay contiguous int64 [E] arrays of events through the simulated allocator.

    Raises:
        InvalidInputError: an event or an option makes no sense; the message names the event by its index.
    """
    try:
        found: dict[str, Any] = _C.replay_allocations(
            storage,
            delta_bytes,
            expandable_segments=expandable_segments,
            max_split_size_bytes=max_split_size_bytes,
            capacity_bytes=capacity_bytes,
            roundup_power2_divisions=roundup_power2_divisions,
            max_non_split_rounding_bytes=max_non_split_rounding_bytes,
            large_segment_bytes=large_segment_bytes,
            timeline=timeline,
            addresses=addresses,
        )
    except ValueError as error:
        raise InvalidInputError(f"The allocation events can't be replayed: {error}.") from None
    timelines = {name: found.pop(name) for name in ("allocated", "reserved", "address") if name in found}
    return cast("Replay", found), cast("Timelines", timelines)
