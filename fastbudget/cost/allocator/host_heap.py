"""Memory that a step on the CPU takes fresh from the operating system: a simulation of glibc's ``malloc``.

Fresh pages cost a fault each, which for large tensors takes longer than the arithmetic on them. Whether the
allocator still holds pages of the step before decides. Source: glibc 2.36, malloc/malloc.c (``sysmalloc``,
``systrim``, the dynamic ``mmap_threshold``); posix_memalign as PyTorch's c10/core/impl/alloc_cpu.cpp calls it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

_ALIGNMENT = 64
_MMAP_THRESHOLD = 128 << 10
_MMAP_THRESHOLD_MAX = 32 << 20
_TOP_PAD = 128 << 10
_PAGE = 4096
# A chunk freed of at least this size lets the heap be trimmed: FASTBIN_CONSOLIDATION_THRESHOLD.
_CONSOLIDATION = 64 << 10


class HostHeap:
    """One arena: chunks between the heap's begin and its top, and mappings of their own for large ones.

    Free chunks are joined at once and the smallest that fits is taken; small objects of other code, which may keep
    the heap from shrinking, are not known.
    """

    def __init__(self) -> None:
        self.fresh_bytes = 0
        self._top = 0  # all chunks lie below
        self._end = 0  # of what the heap has from the system
        self._touched = 0  # below it, pages are there
        self._mmap_threshold = _MMAP_THRESHOLD
        self._trim_threshold = _MMAP_THRESHOLD
        self._free: list[tuple[int, int]] = []  # (size, begin), sorted
        self._free_at: dict[int, int] = {}  # begin -> size
        self._free_ending: dict[int, int] = {}  # end -> size
        self._live: dict[int, tuple[int | None, int]] = {}  # number -> (begin, size); None: a mapping

    def replay(self, events: Iterable[tuple[int, int]]) -> int:
        """Allocate (positive) and free (negative) numbered storages; return the bytes taken fresh meanwhile."""
        before = self.fresh_bytes
        for number, change in events:
            if change > 0:
                self._allocate(number, change)
            elif number in self._live:
                self._release(number)
        return self.fresh_bytes - before

    def live_numbers(self) -> list[int]:
        """Return the storages that are allocated."""
        return list(self._live)

    def _allocate(self, number: int, size: int) -> None:
        size = -(-(size + _ALIGNMENT + 48) // 16) * 16
        index = bisect_left(self._free, (size, -1))
        if index < len(self._free):
            found, begin = self._free[index]
            self._take(begin, found)
            if found > size:
                self._give(begin + size, found - size)
        elif self._end - self._top >= size:
            begin = self._from_top(size)
        elif size >= self._mmap_threshold:
            whole = -(-size // _PAGE) * _PAGE
            self.fresh_bytes += whole
            self._live[number] = (None, whole)
            return
        else:
            self._end = -(-(self._top + size + _TOP_PAD) // _PAGE) * _PAGE
            begin = self._from_top(size)
        self._live[number] = (begin, size)

    def _from_top(self, size: int) -> int:
        begin = self._top
        self._top += size
        self.fresh_bytes += max(0, self._top - self._touched)
        self._touched = max(self._touched, self._top)
        return begin

    def _release(self, number: int) -> None:
        begin, size = self._live.pop(number)
        if begin is None:
            if self._mmap_threshold < size <= _MMAP_THRESHOLD_MAX:
                self._mmap_threshold, self._trim_threshold = size, 2 * size
            return
        end = begin + size
        below = self._free_ending.get(begin)
        if below is not None:
            self._take(begin - below, below)
            begin -= below
        above = self._free_at.get(end)
        if above is not None:
            self._take(end, above)
            end += above
        if end != self._top:
            self._give(begin, end - begin)
        else:
            self._top = begin
        if end - begin >= _CONSOLIDATION and self._end - self._top >= self._trim_threshold:
            self._end = -(-(self._top + _TOP_PAD) // _PAGE) * _PAGE
            self._touched = min(self._touched, self._end)

    def _take(self, begin: int, size: int) -> None:
        self._free.pop(bisect_left(self._free, (size, begin)))
        del self._free_at[begin], self._free_ending[begin + size]

    def _give(self, begin: int, size: int) -> None:
        insort(self._free, (size, begin))
        self._free_at[begin] = self._free_ending[begin + size] = size
        self._free_ending[begin + size] = size
