"""What guard, ledger and metric logging cost per step.

    python bench/reliability/step_overhead.py [--steps 200000] [--json FILE]

A loop over `guard.steps(...)` with `guard.log(loss=..., lr=...)` in it, timed step by step, beside the same loop
without them; the watchdog runs. Each step also adds up some numbers, as a stand-in for work (about 10 us); the bare
loop's median is taken off. Times are CPU time of the thread: what other processes take on a busy machine is not the
guard's. The median of five rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus

_WORK = range(1000)


def timed(batches, log) -> list[int]:
    """Return each step's nanoseconds, work included."""
    times = []
    last = time.thread_time_ns()
    for batch in batches:
        sum(_WORK)
        log(loss=0.5, lr=batch * 1e-6)
        now = time.thread_time_ns()
        times.append(now - last)
        last = now
    return times


def measure(steps: int) -> dict[str, float]:
    """Return one round's microseconds per step."""
    bare = sorted(timed(iter(range(steps)), lambda **values: None))
    with (
        tempfile.TemporaryDirectory() as directory,
        fb.BudgetGuard(fb.Budget(wall_hours=1), run_dir=directory) as guard,
    ):
        guarded = sorted(timed(guard.steps(range(steps)), guard.log))
    median = statistics.median(bare)
    at = lambda times, share: (times[int(share * steps)] - median) / 1000  # noqa: E731
    mean = (statistics.mean(guarded) - statistics.mean(bare)) / 1000
    return {"median_us": at(guarded, 0.5), "p99_us": at(guarded, 0.99), "mean_us": mean, "bare_p99_us": at(bare, 0.99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rounds = [measure(options.steps // 5) for _ in range(5)]
    result = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    print(", ".join(f"{name} {value:.2f}" for name, value in result.items()), f"(load {load:.1f})")
    if options.json:
        machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "load_before": load}
        options.json.write_text(
            json.dumps({"benchmark": "step overhead", "machine": machine, **result, "rounds": rounds}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
