"""Does the guard keep simulated runs inside their budgets, and how much of them does it leave unused?

    python bench/reliability/budget_simulation.py [--runs 10000] [--seed 0] [--json FILE]

The guard's own code runs on a clock moved by hand. Steps, saves and evaluations are log-normal with heavier tails: a
few steps are many times as long, one save in 50 takes three times as long, one evaluation in 100 twice as long.
Evaluations and saves take about a quarter of the time; a budget holds 3 to 100 rounds of training, evaluation and
save, log-uniformly ("tight": the runs with 3 to 10, where one last round is up to a tenth of the budget). The
watchdog is simulated by its rule: SIGTERM at the limit less the grace, SIGKILL at the limit.

A run is the loop of the documentation: evaluate and save first, then each round if it fits, then once more at the end
unless that was just done.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import fastbudget as fb
from fastbudget.budget.rank_agreement import FollowingLedger
from fastbudget.budget.watchdog.shared_state import DEADLINE_NEAR
from fastbudget.hardware import cpu_name, usable_cpus


class Killed(BaseException):
    """The watchdog's SIGKILL."""


class SimulatedMachine:
    """A clock moved by hand, and the watchdog's rule."""

    def __init__(self) -> None:
        self.now = 0.0
        self.guard: fb.BudgetGuard | None = None
        self.deadline = self.near = math.inf

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        target = self.now + seconds
        if target >= self.near:
            self.now, self.near = self.near, math.inf
            assert self.guard is not None
            self.guard._ledger._state.slots[DEADLINE_NEAR] = 1
            self.guard._on_signal("sigterm")  # may leave an evaluation
        if target >= self.deadline:
            self.now = self.deadline
            raise Killed
        self.now = target


class SimulatedStore:
    """Saving takes time; what is saved is durable once that has passed."""

    def __init__(self, save) -> None:
        self._save = save
        self.saved: list[dict[str, float]] = []

    def save(self, step: int, state: Any, metrics: Any) -> Path:
        self._save()
        self.saved.append(metrics)
        return Path()


class MemoryGuard(fb.BudgetGuard):
    """The guard with a ledger in memory: the simulation is of time, not of disks."""

    def _open_ledger_file(self):
        return FollowingLedger(
            self.run_dir, num_devices=1, before_s=0.0, tick_s=self._tick_s, grace_s=self._grace, clock=self._clock
        )


def simulate(seed: int, run_dir: Path) -> dict[str, Any]:
    """Return how one run ended."""
    generator = random.Random(seed)
    machine = SimulatedMachine()
    step_s = math.exp(generator.uniform(math.log(0.01), math.log(3)))
    save_s = step_s * math.exp(generator.uniform(math.log(0.5), math.log(10)))
    evaluation_s = step_s * math.exp(generator.uniform(math.log(1), math.log(30)))
    step_sigma, save_sigma, evaluation_sigma = (generator.uniform(0.02, 0.4) for _ in range(3))
    stragglers = generator.uniform(0, 0.01)

    def step() -> None:
        tail = 1 + generator.paretovariate(2.5) if generator.random() < stragglers else 1.0
        machine.advance(step_s * math.exp(step_sigma * generator.gauss(0, 1)) * tail)

    def save() -> None:
        tail = 3 if generator.random() < 0.02 else 1
        machine.advance(save_s * math.exp(save_sigma * generator.gauss(0, 1)) * tail)

    def evaluate() -> dict[str, float]:
        tail = 2 if generator.random() < 0.01 else 1
        machine.advance(evaluation_s * math.exp(evaluation_sigma * generator.gauss(0, 1)) * tail)
        return {"accuracy": 0.5}

    steps_per_round = max(5, int(3 * (evaluation_s + save_s) / step_s))
    rounds = math.exp(generator.uniform(math.log(3), math.log(100)))
    limit_s = rounds * steps_per_round * step_s
    store = SimulatedStore(save)
    guard = MemoryGuard(fb.Budget(wall_hours=limit_s / 3600), run_dir=run_dir, store=store, clock=machine)
    machine.guard, machine.deadline, machine.near = guard, limit_s, limit_s - guard._grace
    taken, saved_at = 0, -1
    ended = "killed"

    def round_() -> None:
        nonlocal saved_at
        guard.checkpoint({}, guard.evaluate(evaluate), step=taken)
        saved_at = taken

    try:
        with guard:
            round_()
            for _ in guard.steps(iter(int, 1)):
                step()
                taken += 1
                if taken % steps_per_round == 0 and guard.may_evaluate(then_save=True, keep_reserve=True):
                    round_()
            if saved_at != taken:
                round_()
            ended = "finished"
            machine.deadline = machine.near = math.inf
        ended = "finished" if ended == "finished" else "abandoned"
    except Killed:
        pass
    spent_s = machine.now
    return {
        "rounds": rounds,
        "ended": ended,
        "overshoot_s": max(0.0, spent_s - limit_s),
        "unused": max(0.0, limit_s - spent_s) / limit_s,
        "saved": bool(store.saved),
        "evaluated_best": any(store.saved),
        "lost": 0.0 if ended == "finished" else (limit_s - guard._saved_at_s) / limit_s,
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures promised, and what the promise costs."""
    lived = [row for row in rows if row["saved"]]
    unused = sorted(row["unused"] for row in rows)
    return {
        "runs": len(rows),
        "overspent": sum(row["overshoot_s"] > 0 for row in rows),
        "largest_overshoot_s": max(row["overshoot_s"] for row in rows),
        "lived_past_first_save": len(lived),
        "with_evaluated_best": sum(row["evaluated_best"] for row in lived) / len(lived),
        "median_unused": statistics.median(unused),
        "p90_unused": unused[int(0.9 * len(unused))],
        "finished": sum(row["ended"] == "finished" for row in rows) / len(rows),
        "last_evaluation_abandoned": sum(row["ended"] == "abandoned" for row in rows) / len(rows),
        "killed_at_the_limit": sum(row["ended"] == "killed" for row in rows) / len(rows),
        "mean_wasted": statistics.mean(row["unused"] + row["lost"] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        rows = [simulate(options.seed + index, Path(directory)) for index in range(options.runs)]
    result = {"all": summarize(rows), "tight": summarize([row for row in rows if row["rounds"] <= 10])}
    for name, figures in result.items():
        print(name + ": " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    if options.json:
        machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus()}
        document = {"benchmark": "budget simulation", "machine": machine, "seed": options.seed, **result}
        options.json.write_text(json.dumps(document | {"took_s": time.monotonic() - begin}, indent=2) + "\n")


if __name__ == "__main__":
    main()
