"""Is a run that is killed over and over billed for the time its processes lived?

    python bench/reliability/billing.py [--kills 20] [--seed 0] [--json FILE]

A run's process is killed with SIGKILL at a random moment and started again, 20 times, then left to end by itself. The
guard bills from the process's start (`started_at`); what it imports is imported before. True time is the kernel's:
from the process's start to the moment its SIGKILL was sent, both CLOCK_BOOTTIME. Promised: within 1 s or 0.5%,
whichever is more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import fastbudget as fb
from fastbudget.budget import BudgetGuard, read_ledger
from fastbudget.hardware import cpu_name, usable_cpus


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def train(run_dir: Path, started_at: float, steps: int | None) -> None:
    """One session: steps, evaluations, saves that the loop makes itself."""
    with BudgetGuard(fb.Budget(wall_hours=1), run_dir=run_dir, started_at=started_at) as guard:
        for step in guard.steps(range(steps) if steps else itertools.count()):
            time.sleep(0.005)
            if step % 20 == 19:
                guard.evaluate(lambda: time.sleep(0.02))
                guard.saved()


def measure(kills: int, seed: int, shortest_s: float = 0.3, longest_s: float = 3.0) -> dict[str, Any]:
    """Return billed and true seconds over all sessions."""
    generator = random.Random(seed)
    true_s = 0.0
    with tempfile.TemporaryDirectory() as directory:
        for index in range(kills + 1):
            begun, wall = now(), time.time()
            child = os.fork()
            if child == 0:
                try:
                    train(Path(directory), wall, None if index < kills else 50)
                finally:
                    os._exit(0)
            if index < kills:
                time.sleep(generator.uniform(shortest_s, longest_s))
                died = now()
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            else:
                os.waitpid(child, 0)
                died = now()
            true_s += died - begun
        record = read_ledger(Path(directory))
    off_s = record.total_billed_s - true_s
    return {
        "kills": sum(session.reason == "killed" for session in record.session_records),
        "sessions": record.sessions,
        "true_s": true_s,
        "billed_s": record.total_billed_s,
        "off_s": off_s,
        "off_share": off_s / true_s,
        "within_promise": abs(off_s) <= max(1.0, 0.005 * true_s),
        "seconds_by_phase": record.billed_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    result = measure(options.kills, options.seed)
    for name, value in result.items():
        print(f"{name}: {value}")
    if options.json:
        machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "load_before": load}
        document = {"benchmark": "billing", "machine": machine, "seed": options.seed, **result}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
