from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fastbudget as fb
from fastbudget.budget import Ledger, read_ledger

HOUR = 3600.0


def shared_of(tmp_path: Path, seconds: float, **limits: float) -> fb.SharedBudget:
    return fb.SharedBudget(tmp_path / "sweep", fb.Budget(gpu_hours=seconds / HOUR, **limits))


def run_trial(tmp_path: Path, name: str, shared: fb.SharedBudget, clock: Any, seconds: float, **options: Any) -> Any:
    budget = fb.Budget(wall_hours=options.pop("budget_s", 100) / HOUR)
    run_dir = tmp_path / "sweep" / name
    with fb.BudgetGuard(budget, run_dir=run_dir, shared=shared, clock=clock, **options) as guard:
        begun = clock.now
        for _ in guard.steps(iter(int, 1)):
            clock.advance(1)
            if clock.now - begun >= seconds:
                break
    return guard


def test_runs_one_after_the_other_spend_one_budget(tmp_path: Path, clock: Any) -> None:
    shared = shared_of(tmp_path, 250)
    for name in ("a", "b"):
        run_trial(tmp_path, name, shared, clock, 60)
    assert shared.left_device_s() == pytest.approx(130), "what a run didn't spend came not back"
    guard = run_trial(tmp_path, "c", shared, clock, 1000)
    assert guard.stop_reason == "budget" and 95 <= guard.spent_s <= 100, "its own budget holds too"
    last = run_trial(tmp_path, "d", shared, clock, 1000)
    assert last.stop_reason == "budget" and last.spent_s <= 35
    shared_of(tmp_path, 250)
    with pytest.raises(fb.BudgetTooSmallError, match="nothing left"):
        for _ in range(40):
            run_trial(tmp_path, "e", shared, clock, 1)
    spent = sum(read_ledger(path.parent).device_hours for path in tmp_path.glob("sweep/*/ledger.jsonl"))
    assert spent * HOUR <= 250


def test_devices_and_restarts_count(tmp_path: Path, clock: Any) -> None:
    shared = shared_of(tmp_path, 400)
    run_trial(tmp_path, "a", shared, clock, 50, num_devices=2)
    assert shared.left_device_s() == pytest.approx(300)
    again = run_trial(tmp_path, "a", shared, clock, 1000, num_devices=2)  # 100 s by its own budget, 50 are spent
    assert 95 <= again.spent_s <= 100 and shared.left_device_s() == pytest.approx(400 - 2 * again.spent_s)


def test_wall_time_runs_whether_used_or_not(tmp_path: Path, monkeypatch: Any) -> None:
    shared = shared_of(tmp_path, 1000, wall_hours=50 / HOUR)
    now = time.time()
    ledger = Ledger(_made(tmp_path / "sweep" / "a"))
    assert shared.reserve(tmp_path / "sweep" / "a", 100, 1) == pytest.approx(50, abs=1)
    ledger.close("completed")
    monkeypatch.setattr(time, "time", lambda: now + 51)
    with pytest.raises(fb.BudgetTooSmallError):
        shared.reserve(tmp_path / "sweep" / "b", 100, 1)


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


TRIAL = """
import sys, time
from pathlib import Path
import fastbudget as fb
from fastbudget.budget import Ledger
sweep, name = Path(sys.argv[1]), sys.argv[2]
shared = fb.SharedBudget(sweep, fb.Budget(gpu_hours=300 / 3600))
run_dir = sweep / name
run_dir.mkdir()
ledger = Ledger(run_dir)
try:
    print(shared.reserve(run_dir, 100, 1), flush=True)
except fb.BudgetTooSmallError:
    print(0, flush=True)
time.sleep(100)
"""


def start_trial(sweep: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", TRIAL, str(sweep), name], stdout=subprocess.PIPE, text=True)


def test_processes_that_start_together_never_reserve_more_than_there_is(tmp_path: Path) -> None:
    sweep = _made(tmp_path / "sweep")
    trials = [start_trial(sweep, str(index)) for index in range(6)]
    try:
        granted = sorted(float(trial.stdout.readline()) for trial in trials)
        assert granted == [0, 0, 0, 100, 100, 100]
        # A killed one gives back what it hadn't spent, once its watchdog has told how much that was.
        killed = next(trial for trial in trials if _reserved(sweep, str(trials.index(trial))))
        killed.kill()
        killed.wait()
        give_up = time.monotonic() + 10
        shared = fb.SharedBudget(sweep, fb.Budget(gpu_hours=300 / HOUR))
        while (left := shared.left_device_s()) < 50:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert 80 < left < 100
    finally:
        for trial in trials:
            trial.kill()
            trial.wait()


def _reserved(sweep: Path, name: str) -> bool:
    lines = map(json.loads, (sweep / "shared_ledger.jsonl").read_text().splitlines())
    return any(line["event"] == "reserve" and line["run_dir"] == name for line in lines)


def test_a_line_cut_short_is_skipped(tmp_path: Path, clock: Any) -> None:
    shared = shared_of(tmp_path, 250)
    run_trial(tmp_path, "a", shared, clock, 60)
    with (tmp_path / "sweep" / "shared_ledger.jsonl").open("a") as file:
        file.write('{"v": 2, "event": "res')
    assert shared.left_device_s() == pytest.approx(190)
    run_trial(tmp_path, "b", shared, clock, 60)
    assert shared.left_device_s() == pytest.approx(130)
    assert os.path.getsize(tmp_path / "sweep" / "shared_ledger.jsonl")  # noqa: PTH202
