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


LLAMA = ("--config", "llama-7b", "--seq-len", "2048", "--hardware", "a100-80gb")


def test_a_whole_job_is_counted_line_by_line():
    job = (*LLAMA, "--num-devices", "256", "--sharding", "zero3", "--global-batch-size", "2048", "--tokens", "1e12")
    document = json.loads(estimate(*job, "--evaluations", "10", "--evaluation-tokens", "10000000", "--json").stdout)
    assert document["step_time_s"]["low"] < document["step_time_s"]["mid"] < document["step_time_s"]["high"]
    assert 0.1 < document["mfu"]["mid"] < 0.9
    counted = document["job"]
    assert counted["num_steps"] == 238_419 and counted["billed_devices"] == 256
    assert counted["lines_s"]["evaluation"]["mid"] > 0 and counted["kwh"]["mid"] > 0
    assert counted["usd"]["mid"] == pytest.approx(
        counted["gpu_hours"]["mid"] * document["price"]["usd_per_device_hour"]
    )
    text = estimate(*job).stdout
    for words in ("GPU-hours", "USD", "kWh", "kg CO2e", "wall hours", "buffer", "MFU", "tokens per second", "assumed:"):
        assert words in text, words


def test_options_change_the_bill():
    def usd(*options):
        return json.loads(estimate(*LLAMA, "--sharding", "none", "--tokens", "1e9", *options, "--json").stdout)["job"]

    plain = usd("--usd-per-device-hour", "2")
    assert usd("--usd-per-device-hour", "2", "--buffer", "0")["usd"]["mid"] == pytest.approx(plain["usd"]["mid"] / 1.25)
    assert usd("--usd-per-device-hour", "2", "--whole-nodes")["billed_devices"] == 8 > plain["billed_devices"]
    assert usd("--provider", "lambda")["price"]["provider"] == "lambda"
    assert usd("--spot")["lines_s"]["spot_interruptions"]["mid"] > 0
    assert usd("--region", "france")["co2e_kg"]["mid"] < plain["co2e_kg"]["mid"]


def test_a_device_without_a_price_has_hours_and_no_usd():
    unpriced = ("--config", "gpt2", "--seq-len", "1024", "--hardware", "gaudi2", "--tokens", "1e9")
    document = json.loads(estimate(*unpriced, "--json").stdout)
    assert document["price"] is None and document["cost_usd"] is None and document["job"]["usd"] is None
    assert document["job"]["gpu_hours"]["mid"] > 0
    assert "USD                 unknown" in estimate(*unpriced).stdout


def test_decoding_has_its_own_estimate():
    arguments = ("--config", "llama-3-8b", "--hardware", "h100", "--mode", "decode", "--prompt-len", "512")
    document = json.loads(estimate(*arguments, "--micro-batch-size", "8", "--json").stdout)
    assert document["decode_step_s"]["mid"] > 0 and document["usd_per_million_output_tokens"]["mid"] > 0
    assert document["kv_cache_bytes"] == 8 * (512 + 256) * 2 * 32 * 1024 * 2
    assert document["largest_batch"] >= 8 and document["extrapolating"]
    text = estimate(*arguments).stdout
    assert "KV cache" in text and "USD per M tok. out" in text and "extrapolating: mode" in text


def test_claims_are_checked():
    wrong = estimate("--check", "150 ms/step, 8xA100, 524288 tokens/step, 124M", "--json")
    document = json.loads(wrong.stdout)
    assert wrong.exit_code == 4 and document["verdict"] == "impossible"
    text = estimate("--check", "MFU 104% on H100, and a frobnicator")
    assert text.exit_code == 4 and "impossible: MFU of 104%" in text.stdout and "not understood" in text.stdout
    right = estimate("--check", "2048 A100-80GB, 21 days, 1.4T tokens, 65B")
    assert right.exit_code == 0 and "plausible" in right.stdout
    assert estimate("--check", "it was fast").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((*LLAMA, "--check", "MFU 1%"), "either --model"),
        ((*LLAMA, "--tokens", "0"), "tokens must be a whole number of at least 1, got 0"),
        ((*LLAMA, "--tokens", "1e9", "--examples", "5"), "either tokens or examples"),
        ((*LLAMA, "--tokens", "1e9", "--usd-per-device-hour", "-2"), "above 0"),
        ((*LLAMA, "--tokens", "1e9", "--provider", "lamda"), "Did you mean 'lambda'"),
        ((*LLAMA, "--tokens", "1e9", "--region", "atlantis"), "Unknown region"),
        ((*LLAMA, "--tokens", "1e9", "--prices", "nowhere.toml"), "can't be read"),
        ((*LLAMA, "--usd-per-device-hour", "2", "--provider", "lambda"), "Give one of"),
        (("--config", "llama-7b", "--hardware", "h100", "--mode", "decode"), "--prompt-len"),
        (("--config", "llama-7b", "--hardware", "h100", "--mode", "decode", "--prompt-len", "-1"), "prompt_len"),
        (("--model", "a:b", "--inputs", "a:c", "--tokens", "5"), "need --config"),
    ],
)
def test_wrong_money_is_explained(arguments, expected):
    result = estimate(*arguments)
    assert result.exit_code == 2 and expected in result.output.replace("\n", " "), result.output


def test_hardware_shows_prices_with_their_sources():
    listed = json.loads(runner.invoke(app, ["hardware", "h100", "--json"]).stdout)["devices"][0]["prices"]
    assert {price["provider"] for price in listed} >= {"nebius", "lambda"}
    assert all(price["source"] and price["date"] for price in listed)
    assert "2.40 USD/h" in runner.invoke(app, ["hardware", "h100"]).stdout
    assert "? USD/h" in runner.invoke(app, ["hardware", "gaudi2"]).stdout
