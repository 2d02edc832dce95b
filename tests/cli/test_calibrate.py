import json

import pytest
from typer.testing import CliRunner

from fastbudget.cli.main import app

runner = CliRunner()

CODE = """\
import torch
from torch import nn
class Tiny(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()
def build():
    return Tiny(64, 64)
def batch():
    return torch.zeros(16, 64)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine_to_time.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


MINE = ("--model", "mine_to_time:build", "--inputs", "mine_to_time:batch", "--precision", "fp32", "--hardware", "cpu")


def test_calibrate_then_estimate(here):
    result = runner.invoke(app, ["calibrate", "--out", "mine.json", "--device", "cpu", "--seconds", "2", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    written = json.loads((here / "mine.json").read_text())
    assert document.pop("out") == "mine.json" and document == written

    result = runner.invoke(app, ["estimate", *MINE, "--calibration", "mine.json", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert 0 < found["step_time_s"]["low"] < found["step_time_s"]["mid"] < found["step_time_s"]["high"]
    assert sum(found["time_parts"].values()) == pytest.approx(found["step_time_s"]["mid"])
    assert "addmm" in found["time_by_operation"] and "" in found["time_by_module"]
    assert not any("not calibrated" in words for words in found["extrapolating"])

    text = runner.invoke(app, ["estimate", *MINE, "--calibration", "mine.json"]).stdout
    assert "step time" in text and "most of it by operation" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seconds", "0.1"), "at least 1"),
        (("--device", "tpu"), "'cpu' or 'cuda'"),
        (("--out", "nowhere/calibration.json"), "does not exist"),
    ],
)
def test_wrong_usage_is_explained(here, arguments, words):
    result = runner.invoke(app, ["calibrate", *arguments])
    assert result.exit_code == 2 and words in result.output


def test_a_file_that_is_no_calibration_is_named(here):
    (here / "other.json").write_text("[]")
    result = runner.invoke(app, ["estimate", *MINE, "--calibration", "other.json"])
    assert result.exit_code == 2 and "other.json is not a calibration" in result.output


def test_help_has_an_example():
    assert "fastbudget calibrate --out" in runner.invoke(app, ["calibrate", "--help"]).output
