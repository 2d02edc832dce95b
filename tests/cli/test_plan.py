import json

import pytest
from typer.testing import CliRunner

import fastbudget as fb
from fastbudget.cli.main import app

runner = CliRunner()
GPT2 = ("gpt2", "--tokens", "1e10", "--seq-len", "1024", "--global-batch", "512", "--max-devices", "8")


def plan(*arguments):
    return runner.invoke(app, ["plan", *arguments])


def test_the_table_the_reason_and_what_binds():
    result = plan(*GPT2, "--hardware", "a100-80gb", "--hardware", "h100-sxm", "--max-usd", "5000")
    assert result.exit_code == 0, result.output
    for words in ("1 x h100-sxm", "is the cheapest that fits", "What binds next", "layouts that can run", "USD"):
        assert words in result.stdout


def test_json_is_one_document_like_the_python_api():
    result = plan(*GPT2, "--hardware", "a100-80gb", "--deadline-hours", "100", "--objective", "time", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    job = fb.TrainingJob(config="gpt2", tokens=1e10, seq_len=1024, global_batch_size=512)
    expected = fb.plan(job, hardware="a100-80gb", max_devices=8, deadline_hours=100, objective="time").to_json()
    assert found["best"] == json.loads(json.dumps(expected["best"]))
    assert found["fits"] == "yes" and found["best"]["num_devices"] == 8


def test_nothing_fits_exits_with_4_and_says_by_how_much():
    result = plan(*GPT2, "--hardware", "a100-80gb", "--max-gpu-hours", "2")
    assert result.exit_code == 4
    assert "Nothing fits: Nearest: 1 x a100-sxm-80gb" in result.stdout and "2 device-hours are allowed" in result.stdout
    found = json.loads(plan(*GPT2, "--hardware", "a100-80gb", "--max-gpu-hours", "2", "--json").stdout)
    assert found["best"] is None and found["nearest_miss"]["needs"]["gpu_hours"] > 2


def test_files_are_written(tmp_path):
    files = {
        kind: tmp_path / name
        for kind, name in (("accelerate", "a.yaml"), ("deepspeed", "d.json"), ("torchrun", "t.sh"))
    }
    options = [text for kind, path in files.items() for text in (f"--write-{kind}", str(path))]
    result = plan(*GPT2, "--hardware", "a100-80gb", "--objective", "time", *options, "--plot", str(tmp_path / "p.svg"))
    assert result.exit_code == 0, result.output
    assert "your script sets" in result.stdout
    # With --write-deepspeed the memory is DeepSpeed's.
    layouts = [
        fb.read_launch_config(files["accelerate"]).layout(seq_len=1024, global_batch_size=512, micro_batch_size=64)
        if kind == "accelerate"
        else fb.read_launch_config(files["deepspeed"]).layout(seq_len=1024)
        for kind in ("accelerate", "deepspeed")
    ]
    assert {layout.framework for layout in layouts} == {"deepspeed"}
    assert {layout.num_devices for layout in layouts} == {8}
    assert "--nproc-per-node 8 train.py" in files["torchrun"].read_text()
    assert (tmp_path / "p.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*GPT2,), "at least one accelerator"),
        ((*GPT2, "--hardware", "a1000"), "Unknown hardware"),
        ((*GPT2, "--hardware", "a100-80gb", "--objective", "fun"), "objective"),
        ((*GPT2, "--hardware", "a100-80gb", "--tensor-parallel", "5"), "attention heads"),
        ((*GPT2, "--hardware", "a100-80gb", "--plot", "front.gif"), ".svg, .png or .html"),
        (("gpt2", "--seq-len", "1024", "--global-batch", "8", "--hardware", "a100"), "tokens or examples"),
    ],
)
def test_bad_input_is_answered_with_2(arguments, told):
    result = plan(*arguments)
    assert result.exit_code == 2 and told in " ".join(result.output.split())


def test_help_has_an_example():
    assert "fastbudget plan llama-3-8b --tokens 1e12" in " ".join(plan("--help").stdout.replace("│", " ").split())
