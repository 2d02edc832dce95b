"""Bytes that a steady step on the CPU takes fresh from the operating system."""

from __future__ import annotations

import numpy as np

from ..allocator.host_heap import HostHeap
from ..trace.allocation_log import PHASES, AllocationLog

# Of the simulated bytes: small objects, which no trace shows, keep a real heap from shrinking as far. Median of
# measured over simulated page faults for the workloads of bench/cost/step_time_accuracy.py; single ones lie between
# 0 and 2.
_REAL_SHARE = 0.7


def fresh_bytes(log: AllocationLog, *, mode: str) -> float:
    """Return the bytes of one step after others like it.

    Args:
        log: of a trace with the CPU's kernels.
        mode: ``"train"`` or ``"infer"``; a decoded token takes next to nothing.
    """
    if mode == "decode":
        return 0.0
    events = list(zip(log.storage.tolist(), log.delta_bytes.tolist(), strict=True))
    heap = HostHeap()
    if mode == "infer":
        begin = _first(log, "evaluate")
        heap.replay(events[:begin])
        kept = set(heap.live_numbers())
        taken = 0
        for _ in range(2):  # the second finds the heap as a step leaves it
            taken = heap.replay(events[begin:])
            heap.replay([(number, -1) for number in heap.live_numbers() if number not in kept])
        return _REAL_SHARE * taken
    begin = _second_step(log)
    heap.replay(events[:begin])
    return _REAL_SHARE * heap.replay(events[begin:])


def _first(log: AllocationLog, phase: str) -> int:
    found = np.flatnonzero(log.phase == PHASES.index(phase))
    return int(found[0]) if len(found) else len(log.phase)


def _second_step(log: AllocationLog) -> int:
    """Return where the steady step begins: after the gradients of the first one are gone."""
    gone = _first(log, "zero_grad")
    forward = np.flatnonzero(log.phase[gone:] == PHASES.index("forward"))
    return gone + int(forward[0]) if len(forward) else len(log.phase)
