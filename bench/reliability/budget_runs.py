"""Do real processes keep their budgets when they are killed, stopped, and stuck on slow disks?

    python bench/reliability/budget_runs.py [--runs 200] [--at-once 12] [--seed 0] [--json FILE]

Each run is a process under `fb.BudgetGuard` with a budget of 6 to 12 s: steps, evaluations and saves of random length
(saves really write and fsync; a slow disk adds to that), disturbed at random moments: SIGKILL and a restart that
resumes, SIGSTOP for a while or for good, an evaluation that hangs. Time is counted twice: by the ledger, and by this
program, from the moment the process says it opened its budget until it is seen dead or says it closed it. Processes
sleep instead of computing, so many fit on few cores; all clocks are CLOCK_BOOTTIME of the processes themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import fastbudget as fb
from fastbudget.budget import read_ledger
from fastbudget.hardware import cpu_name, usable_cpus

DISTURBANCES = ("none", "kills", "pause", "stop", "slow disk", "hanging evaluation")
TICK_S = 0.25


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SlowStore(fb.CheckpointStore):
    """A store on a disk that takes its time."""

    delay_s = 0.0

    def save(self, step: int, state: Any, metrics: Any = None) -> Path:
        time.sleep(self.delay_s * random.random() * 2)
        return super().save(step, state, metrics)


def train(run_dir: Path, limit_s: float, disturbance: str, seed: int, say: Any) -> None:
    """One session, in a process of its own."""
    random.seed(seed)
    store = SlowStore(run_dir / "checkpoints", metric="accuracy")
    store.delay_s = 0.15 if disturbance == "slow disk" else 0.0
    step_s, evaluation_s = random.uniform(0.002, 0.03), random.uniform(0.02, 0.1)
    state = {"weights": torch.zeros(1000)}

    def evaluate() -> dict[str, float]:
        hangs = disturbance == "hanging evaluation" and guard.fraction_left < 0.4
        time.sleep(100 if hangs else evaluation_s * random.lognormvariate(0, 0.2))
        return {"accuracy": random.random()}

    def round_() -> None:
        guard.checkpoint(state, guard.evaluate(evaluate))

    say(f"open {now()}")
    with fb.BudgetGuard(fb.Budget(wall_hours=limit_s / 3600), run_dir=run_dir, store=store) as guard:
        if not store.paths():
            round_()
            say("saved")
        taken = 0
        for _ in guard.steps(iter(int, 1)):
            time.sleep(step_s * random.lognormvariate(0, 0.3))
            taken += 1
            if taken % 40 == 0 and guard.may_evaluate(then_save=True, keep_reserve=True):
                round_()
        if taken % 40:
            round_()
    say(f"close {now()}")


def session(run_dir: Path, limit_s: float, disturbance: str, generator: random.Random) -> tuple[list[str], float, bool]:
    """Run one session and disturb it; returns what it said, when it was seen dead, and whether it was restarted."""
    read_end, write_end = os.pipe()
    seed = generator.randrange(2**32)
    child = os.fork()
    if child == 0:
        try:
            train(run_dir, limit_s, disturbance, seed, lambda text: os.write(write_end, text.encode() + b"\n"))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write_end)
    disturbed = False
    if disturbance in ("kills", "pause", "stop"):
        time.sleep(generator.uniform(0.1, limit_s * 0.7))
        disturbed = True
        os.kill(child, signal.SIGKILL if disturbance == "kills" else signal.SIGSTOP)
        if disturbance == "pause":
            time.sleep(generator.uniform(0.1, 1.0))
            os.kill(child, signal.SIGCONT)
    os.waitpid(child, 0)
    died = now()
    with os.fdopen(read_end) as channel:
        return channel.read().splitlines(), died, disturbed


def one_run(directory: Path, seed: int, shortest_s: float = 6.0, longest_s: float = 12.0) -> dict[str, Any]:
    """Return how one run ended."""
    generator = random.Random(seed)
    disturbance = DISTURBANCES[seed % len(DISTURBANCES)]
    limit_s = generator.uniform(shortest_s, longest_s)
    run_dir = directory / str(seed)
    run_dir.mkdir()
    lived_s, saved, restarts = 0.0, False, 0
    while True:
        kills_left = disturbance == "kills" and restarts < 3
        said, died, _ = session(
            run_dir, limit_s, disturbance if kills_left or disturbance != "kills" else "", generator
        )
        opened = next((float(text.split()[1]) for text in said if text.startswith("open")), died)
        closed = next((float(text.split()[1]) for text in said if text.startswith("close")), died)
        lived_s += closed - opened
        saved = saved or "saved" in said
        give_up = time.monotonic() + 30
        while not (record := read_ledger(run_dir)).closed and time.monotonic() < give_up:
            time.sleep(0.02)
        if record.last_reason != "killed" or restarts == 10:
            break
        restarts += 1
    best = fb.CheckpointStore(run_dir / "checkpoints", metric="accuracy").best()
    billed_s = record.total_billed_s
    return {
        "disturbance": disturbance,
        "limit_s": limit_s,
        "billed_s": billed_s,
        "lived_s": lived_s,
        "restarts": restarts,
        "reason": record.last_reason,
        "lived_past_first_save": saved,
        "evaluated_best": best is not None,
        "billed_overshoot_s": max(0.0, billed_s - limit_s),
        "seen_overshoot_s": max(0.0, lived_s - limit_s),
        "unused": max(0.0, limit_s - billed_s) / limit_s,
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    lived = [row for row in rows if row["lived_past_first_save"]]
    quiet = [row["unused"] for row in rows if row["disturbance"] in ("none", "slow disk", "kills")]
    return {
        "runs": len(rows),
        "restarts": sum(row["restarts"] for row in rows),
        "largest_billed_overshoot_s": max(row["billed_overshoot_s"] for row in rows),
        "largest_seen_overshoot_s": max(row["seen_overshoot_s"] for row in rows),
        "beyond_one_tick": sum(row["billed_overshoot_s"] > TICK_S for row in rows),
        "with_evaluated_best": sum(row["evaluated_best"] for row in lived) / max(1, len(lived)),
        "median_unused": statistics.median(row["unused"] for row in rows),
        "median_unused_of_runs_not_stopped": statistics.median(quiet) if quiet else None,
        "ended_by": {
            reason: sum(row["reason"] == reason for row in rows) for reason in {row["reason"] for row in rows}
        },
    }


def run_all(runs: int, at_once: int, seed: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda index: one_run(Path(directory), seed + index), range(runs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    rows = run_all(options.runs, options.at_once, options.seed)
    result = summarize(rows)
    for name, value in result.items():
        print(f"{name}: {value}")
    if options.json:
        machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "load": [before, os.getloadavg()[0]]}
        document = {"benchmark": "budget runs", "machine": machine, "seed": options.seed, **result, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
