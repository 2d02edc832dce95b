"""The allocator simulation on hand-written sequences.

Expected numbers follow from PyTorch's documented rules, the notes at the head of CUDACachingAllocator.cpp and
https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management.
"""

import numpy as np
import pytest

from fastbudget.core.errors import InvalidInputError
from fastbudget.cost import AllocatorConfig, simulate_allocator

KIB = 2**10
MIB = 2**20


def replay(*events, config=None, capacity=None):
    """Events: ("a", bytes) allocates the next storage, named a; "-a" frees it."""
    numbers, sizes = {}, {}
    storage, delta = [], []
    for event in events:
        name = event[1:] if isinstance(event, str) else event[0]
        if isinstance(event, str):
            storage.append(numbers[name])
            delta.append(-sizes[name])
        else:
            numbers[name], sizes[name] = len(numbers), event[1]
            storage.append(numbers[name])
            delta.append(event[1])
    return simulate_allocator(storage, delta, config, capacity_bytes=capacity, timeline=True)


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),  # blocks are multiples of 512 bytes; small requests share segments of 2 MiB
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest small request
        (MIB + 1, MIB + 512, 20 * MIB),  # the smallest large one: segments of 20 MiB up to 10 MiB
        (10 * MIB - 1, 10 * MIB, 10 * MIB),  # rounded to 512 first, and so not below 10 MiB anymore
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # from here on a segment of its own, rounded to 2 MiB
        (11 * MIB, 12 * MIB, 12 * MIB),  # the remaining 1 MiB is not more than 1 MiB: not split off
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),  # 512 bytes more remain, and are
    ],
)
def test_one_request(requested, allocated, reserved):
    result = replay(("a", requested))
    assert result.peak_allocated_bytes == result.peak_active_bytes == allocated
    assert result.peak_reserved_bytes == reserved
    assert result.peak_requested_bytes == requested
    assert result.num_segments == 1
    assert result.num_splits == (allocated < reserved)


def test_freed_memory_stays_reserved_and_is_used_again():
    result = replay(("a", 12 * MIB), "-a", ("b", 12 * MIB), "-b")
    assert result.num_segments == 1
    assert (result.final_allocated_bytes, result.final_reserved_bytes) == (0, 12 * MIB)
    assert result.allocated.tolist() == [12 * MIB, 0, 12 * MIB, 0]


def test_small_and_large_pools_share_nothing():
    # 20 MiB lie free in the large pool, but a small request never comes from there.
    result = replay(("a", 5 * MIB), "-a", ("b", 1))
    assert result.peak_reserved_bytes == 22 * MIB


def test_a_segment_of_20_mib_serves_several_requests():
    result = replay(("a", 5 * MIB), ("b", 5 * MIB), ("c", 5 * MIB), ("d", 5 * MIB))
    assert (result.peak_allocated_bytes, result.peak_reserved_bytes) == (20 * MIB, 20 * MIB)
    # b and c split the rest; d takes exactly what is left.
    assert (result.num_segments, result.num_splits) == (1, 3)


def test_a_large_rest_of_at_most_1_mib_is_given_away_whole():
    # 6 MiB from a free block of 7 MiB: the caller holds 7, and PyTorch counts 7 as allocated.
    result = replay(("a", 7 * MIB), ("b", 13 * MIB), "-a", ("c", 6 * MIB))
    assert result.allocated[-1] == 20 * MIB
    assert result.peak_requested_bytes == 20 * MIB  # while a and b lived


def test_a_small_rest_of_512_bytes_is_split_off():
    result = replay(("a", 1024), ("b", 1), "-a", ("c", 512), ("d", 512))
    assert result.num_splits == 3  # a, b from the segment; c from a's block; d takes the rest of a's
    assert result.peak_allocated_bytes == 3 * 512


def test_best_fit_takes_the_smallest_block_that_is_large_enough():
    # Free blocks of 14 and 12 MiB. 12 MiB must come from the second, or the 14 MiB after it don't fit.
    result = replay(("a", 14 * MIB), ("b", 12 * MIB), "-a", "-b", ("c", 12 * MIB), ("d", 14 * MIB))
    assert result.peak_reserved_bytes == 26 * MIB
    assert result.num_splits == 0


def test_equal_blocks_go_by_address():
    # Two free blocks of 4 KiB at 0 and 8 KiB: c takes the lower one, so freeing b (between them) joins b with
    # the upper one and the rest of the segment, and only then both g and h fit.
    mib_less_4k = MIB - 4 * KIB
    before = [("a", 4 * KIB), ("b", 4 * KIB), ("e", 4 * KIB), ("f", 4 * KIB), "-a", "-e"]
    result = replay(*before, ("c", 4 * KIB), "-b", "-f", ("g", mib_less_4k), ("h", MIB))
    assert result.peak_reserved_bytes == 2 * MIB


def test_free_neighbors_are_joined():
    # Four quarters freed in any order are one block again.
    parts = [("a", 5 * MIB), ("b", 5 * MIB), ("c", 5 * MIB), ("d", 5 * MIB)]
    result = replay(*parts, "-b", "-d", "-a", "-c", ("e", 20 * MIB))
    assert (result.peak_reserved_bytes, result.num_segments) == (20 * MIB, 1)


def test_blocks_of_different_segments_are_never_joined():
    result = replay(("a", 10 * MIB), ("b", 10 * MIB), "-a", "-b", ("c", 20 * MIB))
    assert result.peak_reserved_bytes == 40 * MIB


def test_fragmentation_reserves_more_than_was_ever_allocated():
    # Every second block of 20 MiB segments is freed: 50 MiB are free, none of them in a piece above 5 MiB.
    keep = [(f"k{i}", 5 * MIB) for i in range(20)]
    result = replay(*keep, *(f"-k{i}" for i in range(0, 20, 2)), ("big", 30 * MIB))
    assert result.peak_allocated_bytes == 100 * MIB
    assert result.peak_reserved_bytes == 130 * MIB
    assert result.allocated[-1] == 80 * MIB
    assert result.fragmentation == pytest.approx(30 / 130)


def test_growing_sizes_waste_segments_unless_they_expand():
    # The case of Note [Expandable Segments]: each step needs slightly more than the last.
    events = []
    for step in range(10):
        events += [(f"s{step}", (40 + 2 * step) * MIB), f"-s{step}"]
    fixed = replay(*events)
    assert fixed.peak_allocated_bytes == 58 * MIB
    assert fixed.peak_reserved_bytes == sum(40 + 2 * step for step in range(10)) * MIB
    expandable = replay(*events, config=AllocatorConfig(expandable_segments=True))
    assert expandable.peak_reserved_bytes == 60 * MIB  # three pages of 20 MiB


def test_expandable_segments_map_pages_of_2_and_20_mib():
    config = AllocatorConfig(expandable_segments=True)
    assert replay(("a", 1), config=config).peak_reserved_bytes == 2 * MIB
    assert replay(("a", MIB + 1), config=config).peak_reserved_bytes == 20 * MIB
    result = replay(("a", 30 * MIB), ("b", 5 * MIB), ("c", 5 * MIB), ("d", 1 * MIB + 512), config=config)
    # 30 MiB take two pages; b and c fill the second to the brim; d needs a third.
    assert result.reserved.tolist() == [40 * MIB, 40 * MIB, 40 * MIB, 60 * MIB]
    # Rests are split off from 512 bytes up, in the large pool too.
    assert replay(("a", 11 * MIB), config=config).peak_allocated_bytes == 11 * MIB


def test_expandable_segments_give_back_whole_free_pages_only():
    # a and b share the first page. The second is b's alone, so it is what a shortage gets back.
    config = AllocatorConfig(expandable_segments=True)
    result = replay(("a", 10 * MIB), ("b", 30 * MIB), "-b", ("s", 1), config=config, capacity=41 * MIB)
    assert result.reserved.tolist() == [20 * MIB, 40 * MIB, 40 * MIB, 22 * MIB]
    assert (result.num_releases, result.num_retries, result.out_of_memory_event) == (1, 1, None)


def test_max_split_size_keeps_large_blocks_whole():
    # Documented: it "prevents the native allocator from splitting blocks larger than this size".
    limited = AllocatorConfig(max_split_size_mb=32)
    events = [("a", 40 * MIB), "-a", ("b", 8 * MIB)]
    assert replay(*events).peak_reserved_bytes == 40 * MIB  # b is cut from a's block
    assert replay(*events, config=limited).peak_reserved_bytes == 60 * MIB  # b gets a segment of 20 MiB
    # A request above the limit may have an oversize block, whole, if that is less than 20 MiB larger.
    near = replay(("a", 50 * MIB), "-a", ("b", 34 * MIB), config=limited)
    assert (near.peak_reserved_bytes, near.allocated[-1]) == (50 * MIB, 50 * MIB)
    far = replay(("a", 54 * MIB), "-a", ("b", 34 * MIB), config=limited)
    assert far.peak_reserved_bytes == 88 * MIB
    # At 32 MiB exactly a request is oversize too.
    assert replay(("a", 40 * MIB), "-a", ("b", 32 * MIB), config=limited).allocated[-1] == 40 * MIB


def test_max_split_size_gives_back_oversize_blocks_first():
    limited = AllocatorConfig(max_split_size_mb=32)
    events = [("a", 64 * MIB), ("b", 12 * MIB), "-a", "-b", ("c", 40 * MIB)]
    # a's block is too large for c (24 MiB over). It alone goes back: b's stays cached, without a retry.
    result = replay(*events, config=limited, capacity=80 * MIB)
    assert result.reserved[-1] == 52 * MIB
    assert (result.num_releases, result.num_retries) == (1, 0)
    # Two oversize blocks of 34 MiB make room for one of 60.
    two = [("a", 34 * MIB), ("b", 34 * MIB), "-a", "-b", ("c", 60 * MIB)]
    assert replay(*two, config=limited, capacity=70 * MIB).num_retries == 0


def test_a_full_device_gives_back_cached_segments_and_retries():
    result = replay(("a", 30 * MIB), ("s", 1), "-a", ("b", 40 * MIB), capacity=50 * MIB)
    # a's segment goes back to the device; the small one is in use and stays.
    assert result.reserved.tolist() == [30 * MIB, 32 * MIB, 32 * MIB, 42 * MIB]
    assert (result.num_retries, result.num_releases, result.out_of_memory_event) == (1, 1, None)
    assert result.fits


def test_a_segment_in_part_use_is_not_given_back():
    # 15 of 20 MiB are free and 30 MiB of the capacity are left, but 40 MiB in one piece there are not.
    result = replay(("a", 5 * MIB), ("b", 15 * MIB), "-b", ("c", 40 * MIB), capacity=50 * MIB)
    assert (result.out_of_memory_event, result.num_retries, result.fits) == (3, 1, False)


def test_out_of_memory_ends_the_replay_at_its_event():
    result = replay(("a", 20 * MIB), ("b", 20 * MIB), ("c", 20 * MIB), "-a", capacity=40 * MIB)
    assert result.out_of_memory_event == 2
    assert result.allocated.tolist() == [20 * MIB, 40 * MIB]
    assert result.final_allocated_bytes == result.peak_allocated_bytes == 40 * MIB


def test_capacity_that_just_suffices():
    assert replay(("a", 11 * MIB), capacity=12 * MIB).fits
    assert not replay(("a", 11 * MIB), capacity=12 * MIB - 1).fits


@pytest.mark.parametrize(
    ("requested", "divisions", "allocated"),
    [
        (1200 * KIB, 4, 1280 * KIB),  # the example in the documentation, in KiB: 1024, 1280, 1536, 1792
        (1024 * KIB, 4, 1024 * KIB),  # powers of two stay
        (1793 * KIB, 4, 2048 * KIB),
        (2048, 4, 2048),  # up to 512 bytes x divisions the ordinary rounding holds
        (2049, 4, 2560),
        (1200 * KIB, 1, 1200 * KIB),
        (65 * MIB, 2, 96 * MIB),
    ],
)
def test_roundup_power2_divisions(requested, divisions, allocated):
    result = replay(("a", requested), config=AllocatorConfig(roundup_power2_divisions=divisions))
    assert result.peak_allocated_bytes == allocated


def test_roundup_power2_divisions_by_size():
    config = AllocatorConfig.from_env("roundup_power2_divisions:[64:1,128:2,>:4]")
    sizes = {65 * MIB: 66 * MIB, 129 * MIB: 192 * MIB, 257 * MIB: 320 * MIB}
    for requested, allocated in sizes.items():
        assert replay(("a", requested), config=config).peak_allocated_bytes == allocated


def test_large_segment_size():
    result = replay(("a", 2 * MIB), config=AllocatorConfig(large_segment_size_mb=64))
    assert result.peak_reserved_bytes == 64 * MIB


def test_peaks_lie_at_their_first_event():
    result = replay(("a", 512), ("b", 512), "-b", ("c", 512), "-c", "-a")
    assert (result.event_at_peak, result.event_at_reserved_peak) == (1, 0)
    assert result.reserved_at_peak_bytes == 2 * MIB


def test_nothing_allocated():
    for events in ([], [0, 0]):
        result = simulate_allocator(list(range(len(events))), events)
        assert (result.peak_reserved_bytes, result.num_segments) == (0, 0)
        assert (result.event_at_peak, result.event_at_reserved_peak, result.fragmentation) == (
            None,
            None,
            None,
        )
        assert result.allocated is None


@pytest.mark.parametrize(
    ("storage", "delta", "message"),
    [
        ([7, 7], [512, 512], "event 1: storage 7 is allocated already"),
        ([7, 8], [512, -512], "event 1: storage 8 is freed, but is not allocated"),
        ([7, 7, 7], [512, -512, -512], "event 2: storage 7 is freed"),
        ([7, 7], [512, -500], "event 1: storage 7 holds 512 bytes, but the event frees 500"),
        (
            [7, 7],
            [512, -(2**63)],
            "event 1: storage 7 holds 512 bytes, but the event frees 9223372036854775808",
        ),
        ([1, 2], [1, 2**63 - 1], "event 1: 9223372036854775807 bytes for storage 2 exceeds"),
        (range(300), [2**55] * 300, "event 2: what is allocated exceeds"),
        ([-5, 2**62, -5], [1, 1, 1], "event 2: storage -5 is allocated already"),
        ([1], [2**63], "delta_bytes must fit int64, but event 0"),
        ([1], [2**70], "delta_bytes must hold integers"),
        ([1], [1.5], "delta_bytes must hold integers"),
        ([1, 2], [1], "same length, got 2 and 1"),
        ([[1]], [[1]], "one-dimensional"),
    ],
)
def test_bad_events(storage, delta, message):
    with pytest.raises(InvalidInputError, match=message):
        simulate_allocator(storage, delta)


@pytest.mark.parametrize("capacity", [0, -1, 2**56 + 1, 1.5, True, "8"])
def test_bad_capacity(capacity):
    with pytest.raises(InvalidInputError, match="capacity_bytes"):
        simulate_allocator([1], [1], capacity_bytes=capacity)


def test_unusual_arrays():
    # Strided, narrow and unsigned arrays are all integers that fit.
    storage = np.arange(6, dtype=np.uint8)[::2]
    delta = np.array([512, 0, 513, 0, 1, 0], dtype=np.uint64)[::2]
    assert simulate_allocator(storage, delta).peak_allocated_bytes == 512 + 1024 + 512
