"""Short versions of the proofs in bench/reliability: simulated runs, real runs, billing, the cost of a step."""

from __future__ import annotations

import importlib.util
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "reliability"

pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="the benchmarks lie in the source tree")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_simulated_runs_keep_their_budgets_and_use_them(tmp_path: Path) -> None:
    simulation = load("budget_simulation")
    result = simulation.summarize([simulation.simulate(100_000 + seed, tmp_path) for seed in range(150)])
    assert result["overspent"] == 0 and result["with_evaluated_best"] == 1
    assert result["median_unused"] <= 0.025, "the promise of docs/budget.md"
    assert result["finished"] >= 0.9 and result["mean_wasted"] < 0.06


@pytest.mark.parametrize("kept", [0.0, 4.0])
def test_the_simulation_can_tell_a_bad_reserve(tmp_path: Path, kept: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping nothing wastes the last work, keeping four sigma wastes the budget; the guard's choice is better."""
    from fastbudget.budget import finish_reserve

    simulation = load("budget_simulation")
    good = simulation.summarize([simulation.simulate(seed, tmp_path) for seed in range(60)])
    monkeypatch.setattr(finish_reserve, "least_waste_s", lambda finish, stake: finish.quantile_s(kept) * (kept > 0))
    bad = simulation.summarize([simulation.simulate(seed, tmp_path) for seed in range(60)])
    assert bad["mean_wasted"] > good["mean_wasted"]
    assert bad["finished"] < 0.5 if kept == 0 else bad["median_unused"] > good["median_unused"]


def test_real_runs_that_are_killed_stopped_and_stuck_keep_their_budgets(tmp_path: Path) -> None:
    runs = load("budget_runs")
    with ThreadPoolExecutor(6) as pool:
        rows = list(pool.map(lambda seed: runs.one_run(tmp_path, seed, 1.5, 2.5), range(len(runs.DISTURBANCES))))
    result = runs.summarize(rows)
    assert {row["disturbance"] for row in rows} == set(runs.DISTURBANCES) and result["restarts"] >= 1
    assert result["with_evaluated_best"] == 1
    assert result["beyond_one_tick"] == 0, result
    assert set(result["ended_by"]) <= {"budget", "deadline"}


def test_billing_follows_the_processes_through_their_kills() -> None:
    result = load("billing").measure(kills=4, seed=1, shortest_s=0.3, longest_s=0.8)
    assert result["kills"] == 4 and result["within_promise"], result
    assert 0 < result["seconds_by_phase"]["restart_loss"] < result["billed_s"]


def test_a_step_costs_microseconds() -> None:
    overhead = load("step_overhead")
    rounds = [overhead.measure(4000) for _ in range(5)]
    assert statistics.median(row["median_us"] for row in rounds) <= 5.0
    if os.getloadavg()[0] < os.cpu_count():  # on a busy machine the tail is the machine's
        assert min(row["p99_us"] for row in rounds) <= 20.0
