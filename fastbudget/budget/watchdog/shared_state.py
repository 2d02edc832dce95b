"""What the trainer is doing, in memory it shares with the watchdog: a store per step, and no system call."""

import mmap
import os
import time

# The phases a session can be in. `restart_loss` is not one: it is what became of others.
LIVE_PHASES = ("init", "train", "evaluate", "checkpoint", "idle")

OPENED_NS, LIMIT_NS, PHASE, STEPS, WRITE_ERROR, TERMINATE_AT_GRACE, DEADLINE_NEAR = range(7)
_TOTALS = 8
_SLOTS = _TOTALS + len(LIVE_PHASES)
_BYTES = _SLOTS * 8
NO_LIMIT = 2**62


def now_ns() -> int:
    """Return CLOCK_BOOTTIME: the same for all processes, and it counts suspension, which may be billed too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SharedState:
    """64-bit slots, each stored and read in one piece, so a SIGKILL between two stores leaves no half value.

    Time that passed since opening and is in no phase's total belongs to the phase under way: whatever moment a process
    dies in, the totals add up to the time that passed.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Make a state, or attach to the one behind ``descriptor``."""
        fresh = descriptor is None
        self.descriptor = os.memfd_create("fastbudget-state") if descriptor is None else descriptor
        if fresh:
            os.ftruncate(self.descriptor, _BYTES)
        self._memory = mmap.mmap(self.descriptor, _BYTES)
        self.slots = memoryview(self._memory).cast("q")
        if fresh:
            self.slots[LIMIT_NS] = NO_LIMIT

    def close(self) -> None:
        """Let go of the memory; it lives on while another process holds it."""
        self.slots.release()
        self._memory.close()
        os.close(self.descriptor)

    def enter(self, phase: str, at_ns: int) -> None:
        """Bill the time so far to the current phase and begin another."""
        slots = self.slots
        slots[_TOTALS + slots[PHASE]] += at_ns - slots[OPENED_NS] - sum(slots[_TOTALS:])
        slots[PHASE] = LIVE_PHASES.index(phase)

    @property
    def phase(self) -> str:
        """The phase under way."""
        return LIVE_PHASES[self.slots[PHASE]]

    def seconds_by_phase(self, at_ns: int) -> dict[str, float]:
        """Return the session's seconds by phase, without the phases that took none."""
        totals = list(self.slots[_TOTALS:])
        totals[self.slots[PHASE]] += max(0, at_ns - self.slots[OPENED_NS] - sum(totals))
        return {phase: round(total / 1e9, 6) for phase, total in zip(LIVE_PHASES, totals, strict=True) if total > 0}
