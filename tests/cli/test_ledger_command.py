"""`fastbudget ledger` on ledgers of known content."""

import csv
import json

import pytest
from typer.testing import CliRunner

from fastbudget.budget import Ledger, record_unbilled
from fastbudget.cli.main import app

runner = CliRunner()


@pytest.fixture
def run_dir(tmp_path, clock):
    record_unbilled(tmp_path, "init", 2.0)
    first = Ledger(tmp_path, num_devices=2, clock=clock)
    first.enter("train")
    for _ in range(30):
        first.count_step()
    clock.advance(30)
    first.saved()
    clock.advance(5)
    first.close("error: ValueError")
    second = Ledger(tmp_path, num_devices=2, clock=clock)
    second.enter("evaluate")
    clock.advance(4)
    second.close("completed")
    return tmp_path


def test_sums_by_phase_and_by_session(run_dir):
    result = runner.invoke(app, ["ledger", str(run_dir)])
    assert result.exit_code == 0
    for text in ("train", "30 s", "restart_loss", "5 s", "error: ValueError", "39 s", "0.02167 device-hours"):
        assert text in result.stdout, text
    assert "2 s  outside the budget" in result.stdout


def test_json_is_one_document(run_dir):
    found = json.loads(runner.invoke(app, ["ledger", str(run_dir), "--json"]).stdout)
    assert found["seconds_by_phase"] == {"train": 30.0, "restart_loss": 5.0, "evaluate": 4.0}
    assert found["unbilled_seconds_by_phase"] == {"init": 2.0} and found["total_billed_s"] == 39.0
    assert [(s["session"], s["reason"], s["steps"]) for s in found["sessions"]] == [
        (1, "error: ValueError", 30), (2, "completed", 0)
    ]  # fmt: skip


def test_csv_holds_every_second_once(run_dir, tmp_path):
    path = tmp_path / "spend.csv"
    assert runner.invoke(app, ["ledger", str(run_dir), "--csv", str(path)]).exit_code == 0
    rows = list(csv.DictReader(path.open()))
    assert sum(float(row["seconds"]) for row in rows if row["billed"] == "True") == 39.0
    assert sum(float(row["device_hours"] or 0) for row in rows) == pytest.approx(78 / 3600)
    assert {(row["session"], row["phase"]) for row in rows} == {
        ("1", "train"), ("1", "restart_loss"), ("2", "evaluate"), ("", "init")
    }  # fmt: skip


def test_wrong_use_is_told(run_dir, tmp_path):
    (tmp_path / "empty").mkdir()
    result = runner.invoke(app, ["ledger", str(tmp_path / "empty")])
    assert result.exit_code == 2 and "holds no ledger.jsonl" in result.stderr
    result = runner.invoke(app, ["ledger", str(run_dir), "--csv", "/nowhere/x.csv"])
    assert result.exit_code == 2 and "can't be written" in result.stderr
    shown = runner.invoke(app, ["ledger", "--help"]).stdout
    assert "Example:" in shown and "--json" in shown
