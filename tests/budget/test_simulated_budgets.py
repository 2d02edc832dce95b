"""Thousands of runs on a clock moved by hand: heavy-tailed steps, saves and evaluations, and no overspending."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.budget import BudgetGuard, Ledger, LedgerRecord, budget_guard

RUNS = 2000


class MemoryLedger(Ledger):
    """A ledger that forgets its lines: the simulation is of time, not of disks."""

    def __init__(self, run_dir: Path, *, clock: Any, num_devices: int = 1, heartbeat_s: float = 1.0) -> None:
        self._clock, self._num_devices, self._heartbeat_s = clock, num_devices, heartbeat_s
        self._phase, self._since, self._session_s = None, clock.monotonic(), 0.0
        self._last_write = self._since
        self.before = LedgerRecord()

    def _write(self, event: str, **fields: Any) -> None:
        self._last_write = self._clock.monotonic()

    def close(self, reason: str) -> None:
        self._bill()


class ClockStore:
    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save

    def save(self, step: int, state: Any, metrics: Any) -> Path:
        self._save()
        return Path()


def simulate(seed: int, run_dir: Path, make_clock: Callable[[], Any]) -> tuple[float, float]:
    """Return the overshoot in units of the run's longest step, and the share of the budget left unused."""
    generator = np.random.default_rng(seed)
    clock = make_clock()
    step_s = math.exp(generator.uniform(math.log(0.01), math.log(3)))
    save_s = step_s * math.exp(generator.uniform(math.log(0.5), math.log(10)))
    evaluation_s = step_s * math.exp(generator.uniform(math.log(1), math.log(30)))
    step_sigma, save_sigma, evaluation_sigma = generator.uniform(0.02, 0.4, 3)
    stragglers = generator.uniform(0, 0.01)
    longest = 0.0

    def heavy(median: float, sigma: float) -> float:
        return median * math.exp(sigma * generator.standard_normal())

    def step() -> None:
        nonlocal longest
        seconds = heavy(step_s, step_sigma)
        if generator.random() < stragglers:
            seconds *= 1 + generator.pareto(2.5)  # a heavy tail beyond the log-normal
        longest = max(longest, seconds)
        clock.advance(seconds)

    def save() -> None:
        clock.advance(heavy(save_s, save_sigma))

    def evaluate() -> None:
        clock.advance(heavy(evaluation_s, evaluation_sigma))

    cycle = max(5, int(3 * (evaluation_s + save_s) / step_s))  # evaluations take a quarter of the time
    limit = cycle * step_s * generator.uniform(3, 10)
    budget = fb.Budget(wall_hours=limit / 3600)
    with BudgetGuard(budget, run_dir=run_dir, clock=clock, store=ClockStore(save)) as guard:  # type: ignore[arg-type]
        guard.evaluate(evaluate)
        guard.checkpoint({}, step=0)
        taken = 0
        for _ in guard.steps(iter(int, 1)):
            step()
            taken += 1
            if taken % cycle == 0:
                guard.evaluate(evaluate)
                guard.checkpoint({}, step=taken)
        assert guard.stop_reason == "budget"
        guard.evaluate(evaluate)
        guard.checkpoint({}, step=taken)
        left = guard.left_s
    return max(0.0, -left) / longest if longest else 0.0, max(0.0, left) / limit


def test_no_run_overspends(
    tmp_path: Path, hand_clock: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget_guard, "Ledger", MemoryLedger)
    monkeypatch.setattr(budget_guard.signal, "signal", lambda *_: None)
    results = [simulate(seed, tmp_path, hand_clock) for seed in range(RUNS)]
    overshoots = [overshoot for overshoot, _ in results]
    unused = statistics.median(left for _, left in results)
    beyond_one_step = sum(overshoot > 1 for overshoot in overshoots)
    any_overshoot = sum(overshoot > 0 for overshoot in overshoots)
    with capsys.disabled():
        print(
            f"\n{RUNS} simulated runs: {any_overshoot} overspent, {beyond_one_step} by more than one step; "
            f"median unused {unused:.1%}"
        )
    assert beyond_one_step <= RUNS / 1000
    assert unused < 0.5, "a reserve that keeps half of the budget is no reserve"
