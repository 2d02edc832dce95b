"""The watchdog against real processes: killed, stopped, overrunning, with children."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import fastbudget as fb
from fastbudget.budget import Ledger, read_ledger

TICK_S = 0.25


def script(body: str) -> str:
    """A program that has `run_dir` and may say a word on stdout; it imports no torch."""
    head = """
        import os, signal, subprocess, sys, time
        from pathlib import Path
        from fastbudget.budget.ledger import Ledger
        run_dir = Path(sys.argv[1])
    """
    return textwrap.dedent(head) + textwrap.dedent(body)


def start(body: str, run_dir: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script(body), str(run_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.01)


def watchdogs_of(run_dir: Path) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            is_watchdog = process.name.isdigit() and (process / "comm").read_text() == "fb-watchdog\n"
            if is_watchdog and str(run_dir) in (process / "cmdline").read_bytes().decode():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_sigkill_is_seen_billed_and_marked(tmp_path: Path) -> None:
    body = """
        begun = time.clock_gettime(time.CLOCK_BOOTTIME)
        ledger = Ledger(run_dir)
        ledger.enter("train"); time.sleep(0.3)
        ledger.saved(); time.sleep(0.2); ledger.enter("evaluate")
        print(begun, flush=True); time.sleep(100)
    """
    process = start(body, tmp_path)
    begun = float(process.stdout.readline())
    time.sleep(0.4)
    process.kill()
    died = time.clock_gettime(time.CLOCK_BOOTTIME)
    wait_until(lambda: read_ledger(tmp_path).closed)
    record = read_ledger(tmp_path)
    assert record.last_reason == "killed"
    assert record.total_billed_s == pytest.approx(died - begun, abs=0.1)
    process.wait()
    ledger = Ledger(tmp_path)
    ledger.close("completed")
    killed = read_ledger(tmp_path).session_records[0]
    assert killed.billed_s["restart_loss"] == pytest.approx(0.6, abs=0.4), "work since the save is lost"
    assert sum(killed.billed_s.values()) == pytest.approx(killed.total_billed_s), "lost work was billed twice"
    assert killed.total_billed_s == pytest.approx(died - begun, abs=0.1)
    wait_until(lambda: not watchdogs_of(tmp_path))


def test_the_watchdog_is_light_and_quick_to_start(tmp_path: Path) -> None:
    took = []
    for index in range(5):
        run_dir = tmp_path / str(index)
        run_dir.mkdir()
        begun = time.perf_counter()
        ledger = Ledger(run_dir)
        took.append(time.perf_counter() - begun)
        (pid,) = watchdogs_of(run_dir)
        status = Path(f"/proc/{pid}/status").read_text()
        parent, rss_kb = (int(re.search(f"{name}:\\s+(\\d+)", status)[1]) for name in ("PPid", "VmRSS"))
        assert parent != os.getpid() and rss_kb < 16_000
        assert os.getsid(pid) != os.getsid(0), "a signal to our session would reach it"
        ledger.close("completed")
    assert min(took) < 0.1


def test_at_the_limit_the_process_and_its_descendants_are_killed_and_nobody_else(tmp_path: Path) -> None:
    """A child in a session of its own, its child, a grandchild whose parent is dead; a bystander in our group."""
    body = """
        nested = "import subprocess, time; print(subprocess.Popen(['sleep', '100']).pid, flush=True); time.sleep({})"
        make = lambda wait: subprocess.Popen(
            [sys.executable, "-c", nested.format(wait)], stdout=subprocess.PIPE, text=True, start_new_session=True)
        ledger = Ledger(run_dir, grace_s=0.2)
        ledger.enter("train")
        staying, leaving = make(100), make(1.5)
        pids = [staying.pid, int(staying.stdout.readline()), int(leaving.stdout.readline())]
        leaving.wait()
        signal.signal(signal.SIGTERM, lambda *_: print("warned", flush=True))
        print(*pids, flush=True)
        ledger.set_limit(ledger.spent_s() + 1.0, terminate=True)
        while True: time.sleep(0.01)
    """
    bystander = subprocess.Popen(["sleep", "100"])
    process = start(body, tmp_path)
    pids = list(map(int, process.stdout.readline().split()))
    assert all(map(is_running, pids))
    begun = time.monotonic()
    rest = process.stdout.read()
    assert process.wait() == -signal.SIGKILL and rest == "warned\n"
    assert 0.9 < time.monotonic() - begun < 1.0 + TICK_S + 0.1
    wait_until(lambda: not any(map(is_running, pids)), 5)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    wait_until(lambda: read_ledger(tmp_path).closed)
    assert read_ledger(tmp_path).last_reason == "deadline"


def test_a_stopped_process_is_billed_and_ends_at_its_limit(tmp_path: Path) -> None:
    body = """
        ledger = Ledger(run_dir)
        ledger.enter("train")
        ledger.set_limit(1.0)
        print("ready", flush=True); time.sleep(100)
    """
    process = start(body, tmp_path)
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    assert process.wait() == -signal.SIGKILL
    wait_until(lambda: read_ledger(tmp_path).closed)
    assert 1.0 <= read_ledger(tmp_path).total_billed_s <= 1.0 + TICK_S


def test_a_killed_watchdog_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.enter("train")
    (pid,) = watchdogs_of(tmp_path)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    time.sleep(0.2)
    with pytest.warns(RuntimeWarning, match="another one takes over"):
        ledger.tick()
    assert watchdogs_of(tmp_path) not in ([], [pid])
    spent_s = ledger.spent_s()
    ledger.close("completed")
    record = read_ledger(tmp_path)
    assert record.total_billed_s == pytest.approx(spent_s, abs=0.05) and record.sessions == 1 and record.closed


def test_when_everything_dies_the_last_heartbeat_and_a_tick_are_billed(tmp_path: Path) -> None:
    process = start("ledger = Ledger(run_dir); ledger.enter('train'); print('x', flush=True); time.sleep(99)", tmp_path)
    process.stdout.readline()
    time.sleep(0.7)
    (pid,) = watchdogs_of(tmp_path)
    os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    wait_until(lambda: not is_running(pid))
    known_s = read_ledger(tmp_path).total_billed_s
    assert known_s > 0.4
    Ledger(tmp_path).close("completed")
    record = read_ledger(tmp_path)
    assert record.session_records[0].reason == "machine lost"
    assert record.session_records[0].total_billed_s == pytest.approx(known_s + TICK_S)
    assert set(record.session_records[0].billed_s) == {"restart_loss"}, "nothing was saved, so all of it was lost"


def test_the_next_session_waits_for_the_watchdog_of_a_killed_one(tmp_path: Path) -> None:
    for _ in range(5):
        process = start("ledger = Ledger(run_dir); print('x', flush=True); time.sleep(99)", tmp_path)
        process.stdout.readline()
        process.kill()
        Ledger(tmp_path).close("completed")  # at once, before the killed one is even reaped
        process.wait()
    reasons = [session.reason for session in read_ledger(tmp_path).session_records]
    assert reasons == ["killed", "completed"] * 5


# -- the guard on top ----------------------------------------------------------------------------------------------


def test_an_evaluation_that_runs_over_is_abandoned_and_the_block_left_quietly(tmp_path: Path) -> None:
    begun = time.monotonic()
    with fb.BudgetGuard(fb.Budget(wall_hours=2 / 3600), run_dir=tmp_path) as guard:
        guard.evaluate(lambda: time.sleep(0.05))
        for _ in guard.steps(iter(int, 1)):
            time.sleep(0.01)
        assert guard.stop_reason == "budget"
        guard.evaluate(lambda: time.sleep(20))
        pytest.fail("the evaluation was not abandoned")
    assert guard.stop_reason == "budget" and time.monotonic() - begun < 2 + TICK_S
    record = read_ledger(tmp_path)
    assert record.last_reason == "budget" and record.total_billed_s <= 2 + TICK_S


def test_a_save_that_runs_over_is_abandoned_and_the_one_before_is_intact(tmp_path: Path) -> None:
    class StuckStore(fb.CheckpointStore):
        def save(self, step: int, state: Any, metrics: Any = None) -> Path:
            time.sleep(20 if step else 0)
            return super().save(step, state, metrics)

    store = StuckStore(tmp_path / "checkpoints", metric="accuracy")
    with fb.BudgetGuard(fb.Budget(wall_hours=1 / 3600), run_dir=tmp_path, store=store) as guard:
        guard.checkpoint({}, {"accuracy": 0.5})
        guard.checkpoint({}, {"accuracy": 0.6})
        pytest.fail("the save was not abandoned")
    assert guard.stop_reason == "budget" and store.best() == store.latest() == store.paths()[0]


@pytest.mark.parametrize("command", [["sh", "-c", "echo spent > out; exit 3"], "echo spent > out; exit 3"])
def test_a_command_runs_when_the_budget_is_spent(tmp_path: Path, command: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    budget = fb.Budget(wall_hours=0.5 / 3600)
    with fb.BudgetGuard(budget, run_dir=tmp_path / "run", on_exhausted=command) as guard:
        for _ in guard.steps(iter(int, 1)):
            time.sleep(0.01)
    wait_until(lambda: read_ledger(tmp_path / "run").exhausted)
    assert read_ledger(tmp_path / "run").exhausted == {"command": command, "exit_status": 3}
    assert (tmp_path / "out").read_text() == "spent\n"


def test_the_command_runs_after_a_kill_at_the_limit_but_not_after_others(tmp_path: Path) -> None:
    body = """
        ledger = Ledger(run_dir, on_exhausted=["touch", str(run_dir / "spent")])
        ledger.set_limit(float(os.environ["LIMIT"]))
        print("x", flush=True); time.sleep(100)
    """
    process = start(body, tmp_path, env={**os.environ, "LIMIT": "100"})
    process.stdout.readline()
    process.kill()
    process.wait()
    wait_until(lambda: not watchdogs_of(tmp_path))
    assert not (tmp_path / "spent").exists()
    process = start(body, tmp_path, env={**os.environ, "LIMIT": "0.5"})
    assert process.wait() == -signal.SIGKILL
    wait_until(lambda: read_ledger(tmp_path).exhausted)
    assert (tmp_path / "spent").exists() and read_ledger(tmp_path).exhausted["exit_status"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_stops_the_run_and_loses_no_billing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        with pytest.raises(fb.SaveError, match="No space left"):
            ledger = Ledger(disk)
            ledger.enter("train")
            with pytest.raises(OSError), (disk / "filler").open("wb") as filler:
                filler.write(b"x" * 100_000)
            for _ in range(200):
                ledger.saved()
                time.sleep(0.01)
                ledger.tick()
        time.sleep(0.6)
        assert read_ledger(disk).total_billed_s > 0.5, "the heartbeat stopped with the ledger"
        (disk / "filler").unlink()
        ledger.close("completed")
    except fb.SaveError:
        pass
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_the_ledger_is_json_lines(tmp_path: Path) -> None:
    with fb.BudgetGuard(fb.Budget(wall_hours=1), run_dir=tmp_path) as guard:
        for _ in guard.steps(range(3)):
            pass
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["open", "close"] and lines[1]["steps"] == 3
