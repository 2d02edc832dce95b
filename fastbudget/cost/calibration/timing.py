"""Time many short benchmarks in turns, inside a time limit."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

# A sample repeats its call until it lasts about this long: clocks and the calling loop then don't matter.
_SAMPLE_S = 2e-4
_MOST_LOOPS = 200
# Page faults are charged at their average; never take off more than all but this share.
_LEAST_SHARE = 0.1
# Expected range of so many draws from a standard normal distribution (W. A. Shewhart's d2).
_RANGE = {2: 1.128, 3: 1.693}


class HostTimer:
    """Times calls that are done when they return.

    With one thread by its own CPU time: what other processes take of the machine is not in it.

    Args:
        page_fault_s: taken off for each page that a call gets from the operating system: whether the allocator has
            pages left depends on what ran before, and a step is charged for its own.
    """

    def __init__(self, page_fault_s: float = 0.0) -> None:
        self._clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        self._page_fault_s = page_fault_s

    def seconds(self, call: Callable[[], Any], loops: int) -> float:
        """Return the seconds of one of ``loops`` calls."""
        faults = _page_faults()
        began = self._clock()
        for _ in range(loops):
            call()
        passed = self._clock() - began
        faulting = self._page_fault_s * (_page_faults() - faults)
        return max(passed - faulting, _LEAST_SHARE * passed) / loops


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


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
        """Standard deviation of the logarithm, from the middle half, which a rare stall doesn't move; 0 for one."""
        logs = [math.log(max(value, 1e-12)) for value in self.seconds]
        if len(logs) < 4:
            return (max(logs) - min(logs)) / _RANGE[len(logs)] if len(logs) > 1 else 0.0
        low, _, high = statistics.quantiles(logs, n=4)
        return (high - low) / 1.349  # of a normal distribution


class Timed(Protocol):
    """Something to time."""

    @property
    def call(self) -> Callable[[], Any]:
        """Runs it once."""
        ...


T = TypeVar("T", bound=Timed)


def measure_in_turns(
    benchmarks: Iterable[T],
    timer: HostTimer | CudaTimer,
    *,
    until: float,
    most_rounds: int,
    between: Callable[[], None] = lambda: None,
) -> list[tuple[T, Samples]]:
    """Take a sample of each benchmark as it comes, then another of each, and so on.

    Taking turns spreads a disturbance over all of them. A sample that would end after ``until`` is not begun, so the
    limit holds; what was not reached is not in the result.

    Args:
        benchmarks: what to time, each run once before.
        timer: the device's.
        until: when to stop, on ``time.perf_counter``'s clock.
        most_rounds: samples of each.
        between: called before each sample.
    """
    taken: list[tuple[T, Samples]] = []

    def sampled(benchmark: T, samples: Samples) -> bool:
        between()
        once = min(samples.seconds) if samples.seconds else timer.seconds(benchmark.call, 1)
        loops = max(1, min(_MOST_LOOPS, round(_SAMPLE_S / max(once, 1e-9))))
        if time.perf_counter() + once * loops > until:
            return False
        samples.seconds.append(timer.seconds(benchmark.call, loops))
        return True

    for benchmark in benchmarks:
        samples = Samples()
        if not sampled(benchmark, samples):
            return taken
        taken.append((benchmark, samples))
    for _ in range(most_rounds - 1):
        for benchmark, samples in taken:
            if not sampled(benchmark, samples):
                return taken
    return taken
