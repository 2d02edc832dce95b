"""The installed console script as a user runs it: budgets, signals, kills, full disks."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastbudget.budget import read_ledger
from fastbudget.checkpoint import CheckpointStore

# Evaluates and saves often, so that tests need not wait.
QUICK = """\
model: fastbudget.workflow.workloads.digits:build_model
data: fastbudget.workflow.workloads.digits:build_data
optimizer: {lr: 0.003}
train: {max_steps: 1500, evaluate_every: 25}
budget: {gpu_hours: 0.05}
metrics: [accuracy]
"""

# -P: the installed package, not the source tree that the tests may run in.
COMMAND = [sys.executable, "-P", "-m", "fastbudget.cli.main"]


def start(*arguments, **options):
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finish(process):
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@pytest.fixture
def quick(tmp_path):
    path = tmp_path / "quick.yaml"
    path.write_text(QUICK)
    return path


def wait_for_steps(run_dir, steps, process):
    """Wait until training has begun and some steps are recorded durably."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        checkpoints = sorted((run_dir / "checkpoints").glob("step_*"))
        if checkpoints and int(checkpoints[-1].name.split("_")[1]) >= steps:
            return
        time.sleep(0.02)
    raise AssertionError("training did not get that far")


def test_a_tiny_budget_stops_the_run_with_code_3_and_an_evaluated_best_checkpoint(tmp_path):
    run_dir = tmp_path / "tiny"
    code, out, err = finish(start("run", "digits", "--max-gpu-hours", "0.0008", "--run-dir", run_dir, "--json"))
    assert code == 3, err
    result = json.loads(out)
    assert result["train"]["stop_reason"] == "budget" and result["exit_code"] == 3
    assert result["train"]["spent_device_hours"] <= 0.0008
    assert result["train"]["spent_device_hours"] == pytest.approx(read_ledger(run_dir).device_hours)
    best = CheckpointStore(run_dir / "checkpoints", metric="accuracy").best()
    assert str(best) == result["train"]["best_checkpoint"]
    checkpoint = CheckpointStore(run_dir / "checkpoints").load(best)
    assert checkpoint.metrics["accuracy"] == result["train"]["best_metrics"]["accuracy"]
    assert 0 <= result["evaluate"]["accuracy"]["low"] <= result["evaluate"]["accuracy"]["value"]
    assert Path(result["report"]).exists() and "plan" in err


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_bills_and_can_be_resumed(tmp_path, quick, number, expected):
    run_dir = tmp_path / "run"
    process = start("run", quick, "--run-dir", run_dir, "--json")
    wait_for_steps(run_dir, 50, process)
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == expected, err
    interrupted = json.loads(out)["train"]
    store = CheckpointStore(run_dir / "checkpoints", metric="accuracy")
    assert store.load().step == interrupted["steps"] and store.best() is not None
    assert read_ledger(run_dir).closed and read_ledger(run_dir).last_reason == number.name.lower()

    # What is left is too little for all steps, so the resumed run ends by its budget.
    spent = interrupted["spent_device_hours"]
    limit = spent + 4.0 / 3600
    code, out, err = finish(
        start("run", quick, "--max-gpu-hours", limit, "--run-dir", run_dir, "--resume", "--no-export", "--json")
    )
    resumed = json.loads(out)["train"]
    assert code in (0, 3), err
    assert resumed["sessions"] == 2 and resumed["steps"] > interrupted["steps"]
    assert spent < resumed["spent_device_hours"] <= limit


def test_a_sigkilled_run_resumes_from_its_checkpoint_and_is_billed_for_what_was_lost(tmp_path, quick):
    run_dir = tmp_path / "run"
    process = start("run", quick, "--run-dir", run_dir)
    wait_for_steps(run_dir, 50, process)
    began = read_ledger(run_dir).total_billed_s
    process.kill()
    process.communicate()
    give_up = time.monotonic() + 10
    while not (before := read_ledger(run_dir)).closed:  # its watchdog writes how it ended
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert before.last_reason == "killed" and before.total_billed_s >= began
    limit = (before.total_billed_s + 4.0) / 3600
    code, out, err = finish(
        start("run", quick, "--max-gpu-hours", limit, "--run-dir", run_dir, "--resume", "--no-export", "--json")
    )
    assert code in (0, 3), err
    result = json.loads(out)["train"]
    lost = before.session_records[0].unsaved_s()
    assert result["seconds_by_phase"]["restart_loss"] == pytest.approx(sum(lost.values()), abs=1e-3)
    assert result["spent_device_hours"] <= limit


def test_a_signal_while_planning_exits_at_once(tmp_path):
    process = start("run", "pydocs", "--run-dir", tmp_path / "run", "--json")
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code in (143, -signal.SIGTERM), err
    assert not (tmp_path / "run" / "checkpoints").exists()


@contextmanager
def small_disk(path, megabytes):
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_fails_loudly_and_leaves_the_last_good_checkpoint(tmp_path, quick):
    disk = tmp_path / "disk"
    with small_disk(disk, 5):  # two checkpoints of 2.3 MB fit, a third beside them doesn't
        code, _, err = finish(start("run", quick, "--run-dir", disk / "run"))
        assert code == 1, err
        assert "could not be saved" in err and "The last good checkpoint is" in err and "No space left" in err
        store = CheckpointStore(disk / "run" / "checkpoints")
        assert store.load().state["model"] and store.verify(store.latest()) is None


def test_json_is_alone_on_stdout_and_progress_on_stderr(tmp_path):
    code, out, err = finish(
        start("run", "digits", "--max-gpu-hours", "0.0006", "--run-dir", tmp_path / "run", "--no-export", "--json")
    )
    assert code == 3 and json.loads(out)["export"] is None
    assert "step 0 of" in err and "Parameters" in err


def test_a_run_is_exported_afterwards_by_its_own_command(tmp_path):
    run_dir = tmp_path / "run"
    finish(start("run", "digits", "--max-gpu-hours", "0.0006", "--run-dir", run_dir, "--no-export"))
    exported = subprocess.run(
        [sys.executable, "-P", "-m", "fastbudget.cli.export", str(run_dir), "--out", str(tmp_path / "out"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    manifest = json.loads(exported.stdout)
    assert manifest["verification"]["same_predictions"] == 1.0
    assert (tmp_path / "out" / "model.onnx").exists()
