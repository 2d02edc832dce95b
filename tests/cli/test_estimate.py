import json

import pytest
from typer.testing import CliRunner

from fastbudget.cli.main import app

runner = CliRunner()

CODE = """\
import torch
from torch import nn
def build():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0), Mean())
class Mean(nn.Module):
    def forward(self, x):
        return x.mean()
class Peeks(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y.mean() if y.sum().item() > 0 else y.sum()
def build_peeking():
    return Peeks(64, 1)
def build_raising():
    return 1 / 0
def batch():
    return torch.zeros(16, 64)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine_to_estimate.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def estimate(*arguments):
    return runner.invoke(app, ["estimate", *arguments])


MINE = ("--model", "mine_to_estimate:build", "--inputs", "mine_to_estimate:batch", "--precision", "fp32")


def test_a_module_is_traced(here):
    result = estimate(*MINE, "--hardware", "h100", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["num_params"] == 64 * 65 + 65
    assert found["memory"]["fits"] == "yes" and found["memory"]["by_category"]["optimizer_state"] > 0
    assert "fits                yes" in estimate(*MINE, "--hardware", "h100").stdout


def test_a_timeline_is_one_page_without_network(here):
    result = estimate(*MINE, "--hardware", "cpu", "--timeline", "memory.html")
    assert result.exit_code == 0, result.output
    page = (here / "memory.html").read_text()
    assert page.count("<polygon") == 7 and "optimizer_state, at most" in page and "http" not in page
    refused = estimate(*MINE, "--hardware", "cpu", "--timeline", "memory.gif")
    assert refused.exit_code == 2 and ".html or .png" in refused.stderr


def test_a_configuration_that_does_not_fit_exits_with_4():
    result = estimate("--config", "llama-3-70b", "--seq-len", "4096", "--hardware", "h100", "--json")
    assert result.exit_code == 4 and json.loads(result.stdout)["memory"]["fits"] == "no"


def test_pipeline_stages_are_listed():
    arguments = ("--config", "llama-7b", "--seq-len", "2048", "--hardware", "a100", "--num-devices", "4")
    result = estimate(*arguments, "--pipeline-parallel", "4", "--global-batch-size", "8")
    assert result.exit_code in (0, 4) and all(f"stage {stage}:" in result.stdout for stage in range(4))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "either --model"),
        (("--model", "a:b"), "--inputs"),
        (("--config", "llama-7b"), "--seq-len"),
        (("--config", "llama-7b", "--seq-len", "128"), "--hardware"),
        (
            ("--config", "llama-7b", "--seq-len", "128", "--hardware", "h100", "--tensor-parallel", "0"),
            "tensor_parallel",
        ),
        (("--config", "llama-7bb", "--seq-len", "128", "--hardware", "h100"), "llama-7b"),
        (("--config", "llama-7b", "--seq-len", "128", "--hardware", "h1000"), "Did you mean"),
    ],
)
def test_wrong_usage_is_explained(arguments, expected):
    result = estimate(*arguments)
    assert result.exit_code == 2 and expected in result.output


def test_a_model_that_reads_values_is_named_with_its_line(here):
    result = estimate("--model", "mine_to_estimate:build_peeking", *MINE[2:], "--hardware", "cpu", "--json")
    message = json.loads(result.stdout)["error"]["message"]
    assert result.exit_code == 2 and "mine_to_estimate.py:11" in message


def test_a_factory_that_raises_is_named_with_its_line(here):
    result = estimate("--model", "mine_to_estimate:build_raising", *MINE[2:], "--hardware", "cpu", "--json")
    message = json.loads(result.stdout)["error"]["message"]
    assert result.exit_code == 2 and "raised ZeroDivisionError" in message and "mine_to_estimate.py:15" in message


def test_hardware_lists_the_table():
    listed = json.loads(runner.invoke(app, ["hardware", "--json"]).stdout)["devices"]
    assert len(listed) >= 37 and {"h100-sxm", "a100-sxm-80gb"} <= {device["key"] for device in listed}
    assert "from memory" in runner.invoke(app, ["hardware", "v100"]).stdout
