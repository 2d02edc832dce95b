"""Time many short benchmarks in turns, inside a time limit."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# A sample repeats its call until it lasts about this long: clocks and the calling loop then don't matter.
_SAMPLE_S = 2e-4
_MOST_LOOPS = 200


class HostTimer:
    """Times calls that are done when they return.

    With one thread by its own CPU time: what other processes take of the machine is not in it.
    """

    def __init__(self) -> None:
        self._clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def seconds(self, call: Callable[[], Any], loops: int) -> float:
        """Return the seconds of one of ``loops`` calls."""
        began = self._clock()
        for _ in range(loops):
            call()
        return (self._clock() - began) / loops


class CudaTimer:
    """Times calls that only start work on a GPU, by events on its stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, call: Callable[[], Any], loops: int) -> float:
        """Return the seconds of one of ``loops`` calls."""
        with torch.cuda.device(self._device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(loops):
                call()
            end.record()
            end.synchronize()
        return begin.elapsed_time(end) / 1000 / loops


@dataclass
class Samples:
    """Seconds of one call, measured several times."""

    seconds: list[float] = field(default_factory=list)

    @property
    def undisturbed_s(self) -> float:
        """The median of the faster half: what other processes do only ever slows a call down."""
        ordered = sorted(self.seconds)
        return statistics.median(ordered[: (len(ordered) + 1) // 2])

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm, from the middle half, which a rare stall doesn't move."""
        if len(self.seconds) < 4:
            return 0.0
        low, _, high = statistics.quantiles([math.log(max(value, 1e-12)) for value in self.seconds], n=4)
        return (high - low) / 1.349  # of a normal distribution


def measure_in_turns(
    calls: Sequence[Callable[[], Any]],
    timer: HostTimer | CudaTimer,
    *,
    until: float,
    most_rounds: int,
    between: Callable[[], None] = lambda: None,
) -> list[Samples]:
    """Take a sample of each call, then another of each, and so on.

    Taking turns spreads a disturbance over all of them. A call that would end after ``until`` is left out, so the
    limit holds; calls without a sample have not been reached.

    Args:
        calls: what to time, each run once before.
        timer: the device's.
        until: when to stop, on ``time.perf_counter``'s clock.
        most_rounds: samples of each.
        between: called before each sample.
    """
    taken = [Samples() for _ in calls]
    for _ in range(most_rounds):
        for call, samples in zip(calls, taken, strict=True):
            between()
            once = min(samples.seconds) if samples.seconds else timer.seconds(call, 1)
            loops = max(1, min(_MOST_LOOPS, round(_SAMPLE_S / max(once, 1e-9))))
            if time.perf_counter() + once * loops > until:
                return taken
            samples.seconds.append(timer.seconds(call, loops))
    return taken
