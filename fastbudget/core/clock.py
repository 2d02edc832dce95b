"""Time as a value that can be passed in, so that tests run on a clock of their own."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for durations, wall time for people and for what outlives the process."""

    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's clock. Monotonic time counts suspension too: a sleeping machine may still be billed."""

    def monotonic(self) -> float:
        """Return CLOCK_BOOTTIME in seconds."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()


def utc_text(wall_s: float) -> str:
    """Format seconds since the epoch as ``2026-01-31T12:00:00.000Z``."""
    moment = datetime.fromtimestamp(wall_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
