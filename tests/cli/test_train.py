"""`fastbudget train`: two ranks of a function's trainer, of a script, and what goes wrong."""

import json
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from fastbudget.cli.main import app

MODULE = """
import torch, fastbudget as fb

def build():
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(32, 4, generator=generator), torch.randint(0, 3, (32,), generator=generator)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size={batch_size})
    return fb.Trainer(
        model=torch.nn.Linear(4, 3), train_data=loader, loss="cross_entropy", budget=fb.Budget(wall_hours=0.1),
        run_dir="run", evaluate=lambda model: {{"loss": 1.0}}, metric="loss", mode="min", max_steps=6,
    )
"""

runner = CliRunner()


def train(directory, *arguments):
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fastbudget.cli.main", "train", *arguments],
        cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_help_shows_an_example():
    result = runner.invoke(app, ["train", "--help"])
    assert result.exit_code == 0 and "Example" in result.stdout and "--json" in result.stdout


def test_two_ranks_train_what_a_function_makes(tmp_path):
    (tmp_path / "job.py").write_text(MODULE.format(batch_size=4))
    out, errors = (job := train(tmp_path, "job:build", "--nproc", "2", "--json")).communicate(timeout=120)
    assert job.returncode == 0, errors
    document = json.loads(out)
    assert document["stop_reason"] == "completed" and document["steps"] == 6 and document["ranks"] == 2
    assert document["best_checkpoint"].endswith("step_000000000006")


def test_data_that_ranks_cannot_share_is_wrong_usage_told_once(tmp_path):
    (tmp_path / "job.py").write_text(MODULE.format(batch_size=5))
    out, errors = (job := train(tmp_path, "job:build", "--nproc", "2", "--json")).communicate(timeout=120)
    assert job.returncode == 2, errors
    assert "can't be shared evenly by 2 ranks" in json.loads(out)["error"]["message"]
    assert errors.count("can't be shared evenly") == 1 and "Traceback" not in errors


def test_a_failing_script_ends_all_ranks_with_its_traceback(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1' and sys.argv[1:] == ['--fail']:\n    raise ValueError('broken')\n"
        "time.sleep(60)\n"
    )
    begun = time.monotonic()
    out, errors = (job := train(tmp_path, "script.py", "--nproc", "2", "--", "--fail")).communicate(timeout=120)
    assert job.returncode == 1 and time.monotonic() - begun < 40
    assert "ValueError: broken" in errors and "Rank 1 ended with exit code 1" in errors and not out


def test_a_signal_is_passed_on_to_the_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, signal, sys, time\n"
        "def save(*_):\n    pathlib.Path(f\"saved{os.environ['RANK']}\").touch()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path(f\"up{os.environ['RANK']}\").touch()\n"
        "time.sleep(60)\n"
    )
    job = train(tmp_path, "script.py", "--nproc", "2", "--json")
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("up?"))) < 2:
        assert time.monotonic() < until and job.poll() is None
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 143 and json.loads(out)["stop_reason"] == "sigterm"
    assert len(list(tmp_path.glob("saved?"))) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.py"], "There is no script"),
        (["nowhere:build", "--max-gpu-hours", "1"], "budget is not for"),
        (["nowhere.yaml", "--nproc", "2"], "can't be read"),
    ],
)
def test_mistakes_are_told_before_anything_starts(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["train", *arguments, "--json"])
    assert result.exit_code == 2 and expected in json.loads(result.stdout)["error"]["message"]
