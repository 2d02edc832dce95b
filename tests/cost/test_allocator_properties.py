"""The allocator simulation on random traces: against a slow, obvious allocator, against numbers recorded from
PyTorch's own, and for what must always hold."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbudget.cost import AllocatorConfig, _native, simulate_allocator

MIB = 2**20
CASES = json.loads((Path(__file__).parent / "cases" / "torch_allocator.json").read_text())

# Sizes near the rules' thresholds find more mistakes than uniform ones.
sizes = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 64 * MIB),
    st.builds(
        lambda mib, extra: max(1, mib * MIB + extra),
        st.sampled_from([0, 1, 2, 5, 9, 10, 11, 12, 19, 20, 21, 32, 40]),
        st.sampled_from([-512, -1, 0, 1, 512]),
    ),
)
# (size, None) allocates; (None, fraction) frees one of those alive.
steps = st.lists(st.one_of(st.tuples(sizes, st.none()), st.tuples(st.none(), st.floats(0, 0.999))), max_size=80)
configs = st.sampled_from(
    [
        AllocatorConfig(),
        AllocatorConfig(expandable_segments=True),
        AllocatorConfig(max_split_size_mb=20),
        AllocatorConfig(max_split_size_mb=32, roundup_power2_divisions=4),
        AllocatorConfig(expandable_segments=True, max_split_size_mb=40, large_segment_size_mb=32),
    ]
)
capacities = st.one_of(st.none(), st.integers(1, 200 * MIB))


def to_events(drawn):
    storage, delta, alive = [], [], []
    for size, fraction in drawn:
        if size is not None:
            alive.append((len(storage), size))
            storage.append(len(storage))
            delta.append(size)
        elif alive:
            number, freed = alive.pop(int(fraction * len(alive)))
            storage.append(number)
            delta.append(-freed)
    return storage, delta


class ObviousAllocator:
    """PyTorch's rules with its default options, as lists that are searched from end to end."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.segments = []  # {"small": bool, "blocks": [[size, storage or None], ...]}, oldest first

    def reserved(self):
        return sum(size for segment in self.segments for size, _ in segment["blocks"])

    def allocated(self):
        return sum(size for segment in self.segments for size, user in segment["blocks"] if user is not None)

    def allocate(self, storage, requested):
        size = -(-requested // 512) * 512
        small = size <= MIB
        found = self.best_fit(small, size)
        if found is None:
            new = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.reserved() + new > self.capacity:
                self.segments = [
                    segment for segment in self.segments if any(user is not None for _, user in segment["blocks"])
                ]
            if self.reserved() + new > self.capacity:
                return False
            self.segments.append({"small": small, "blocks": [[new, None]]})
            found = self.segments[-1]["blocks"], 0
        blocks, i = found
        rest = blocks[i][0] - size
        if rest >= 512 if small else rest > MIB:
            blocks[i : i + 1] = [[size, storage], [rest, None]]
        else:
            blocks[i][1] = storage
        return True

    def best_fit(self, small, size):
        fitting = [
            (block[0], number, i)
            for number, segment in enumerate(self.segments)
            if segment["small"] == small
            for i, block in enumerate(segment["blocks"])
            if block[1] is None and block[0] >= size
        ]
        if not fitting:
            return None
        _, number, i = min(fitting)
        return self.segments[number]["blocks"], i

    def free(self, storage):
        for segment in self.segments:
            joined = []
            for size, user in segment["blocks"]:
                user = None if user == storage else user
                if user is None and joined and joined[-1][1] is None:
                    joined[-1][0] += size
                else:
                    joined.append([size, user])
            segment["blocks"] = joined


@settings(max_examples=300, deadline=None)
@given(steps, capacities)
def test_agrees_with_the_obvious_allocator(drawn, capacity):
    storage, delta = to_events(drawn)
    obvious = ObviousAllocator(float("inf") if capacity is None else capacity)
    allocated, reserved, failed = [], [], None
    for i, (number, change) in enumerate(zip(storage, delta, strict=True)):
        if change < 0:
            obvious.free(number)
        elif not obvious.allocate(number, change):
            failed = i
            break
        allocated.append(obvious.allocated())
        reserved.append(obvious.reserved())
    result = simulate_allocator(storage, delta, capacity_bytes=capacity, timeline=True)
    assert result.out_of_memory_event == failed
    assert result.allocated.tolist() == allocated
    assert result.reserved.tolist() == reserved


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["settings"] or "default")
def test_agrees_with_pytorch(case):
    # Recorded from the allocator in torch's own binary; see "source" in the file.
    result = simulate_allocator(
        case["storage"],
        case["delta_bytes"],
        AllocatorConfig.from_env(case["settings"]),
        capacity_bytes=case["capacity_bytes"],
        timeline=True,
    )
    assert result.out_of_memory_event == case["out_of_memory_event"]
    assert result.allocated.tolist() == case["allocated"]
    assert result.reserved.tolist() == case["reserved"]
    for name in ("num_segments", "num_releases", "num_retries", "peak_requested_bytes"):
        assert getattr(result, name) == case[name], name


@settings(max_examples=300, deadline=None)
@given(steps, configs, capacities)
def test_what_must_always_hold(drawn, config, capacity):
    storage, delta = to_events(drawn)
    result = simulate_allocator(storage, delta, config, capacity_bytes=capacity, timeline=True)
    assert result == simulate_allocator(storage, delta, config, capacity_bytes=capacity)
    replayed = len(storage) if result.out_of_memory_event is None else result.out_of_memory_event
    assert len(result.allocated) == len(result.reserved) == replayed
    requested = np.cumsum(np.array(delta[:replayed], dtype=np.int64))
    assert (requested <= result.allocated).all()
    assert (result.allocated <= result.reserved).all()
    if capacity is not None:
        assert result.peak_reserved_bytes <= capacity
    assert result.peak_allocated_bytes == max(result.allocated, default=0)
    assert result.peak_reserved_bytes == max(result.reserved, default=0)
    assert result.peak_requested_bytes == max(requested, default=0)
    if replayed and result.fits:
        assert result.final_allocated_bytes == result.allocated[-1]
        assert result.final_reserved_bytes == result.reserved[-1]


@settings(max_examples=200, deadline=None)
@given(steps, configs)
def test_all_freed_leaves_nothing_allocated(drawn, config):
    storage, delta = to_events(drawn)
    alive = {number for number, change in zip(storage, delta, strict=True) if change > 0}
    alive -= {number for number, change in zip(storage, delta, strict=True) if change < 0}
    for number in sorted(alive):
        storage.append(number)
        delta.append(-delta[number])  # a storage is numbered by the event that allocates it
    result = simulate_allocator(storage, delta, config)
    assert result.final_allocated_bytes == 0
    # With everything free, whole segments can go back: the peak is a capacity that suffices.
    assert simulate_allocator(storage, delta, config, capacity_bytes=max(1, result.peak_reserved_bytes)).fits


@settings(max_examples=200, deadline=None)
@given(steps, configs, capacities)
def test_live_blocks_never_overlap(drawn, config, capacity):
    storage, delta = to_events(drawn)
    _, timelines = _native.replay_allocations(
        np.array(storage, dtype=np.int64),
        np.array(delta, dtype=np.int64),
        expandable_segments=config.expandable_segments,
        max_split_size_bytes=-1 if config.max_split_size_mb is None else config.max_split_size_mb * MIB,
        large_segment_bytes=config.large_segment_size_mb * MIB,
        max_non_split_rounding_bytes=config.large_segment_size_mb * MIB,
        capacity_bytes=-1 if capacity is None else capacity,
        addresses=True,
    )
    alive = {}
    for number, change, address in zip(storage, delta, timelines["address"], strict=False):
        if change < 0:
            assert alive.pop(number) == (address, -change)
            continue
        assert address % 512 == 0
        for other, size in alive.values():
            assert address + change <= other or other + size <= address
        alive[number] = (address, change)
