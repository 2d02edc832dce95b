"""Claims about training runs: what is read, and what is found wrong."""

import json
from pathlib import Path

import pytest

import fastbudget as fb
from fastbudget.cost.claims.claim_reading import read_claim
from fastbudget.cost.claims.peaks import is_right_peak, name_of_peak
from fastbudget.hardware import find_device

CASES = json.loads((Path(__file__).parent / "cases" / "claims.json").read_text())
BENCH = Path(__file__).parents[2] / "bench" / "cost"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "published_runs.csv"


@pytest.mark.parametrize("case", CASES, ids=[case["claim"] for case in CASES])
def test_claims(case):
    report = fb.check_claim(case["claim"])
    assert report.verdict == case["verdict"], report.findings
    assert report.ok == (case["verdict"] == "plausible")
    if "about" in case:
        about = [finding.about for finding in report.findings]
        assert case["about"] in about, report.findings
    if "says" in case:
        assert any(case["says"] in finding.message for finding in report.findings), report.findings


READ = {
    "150 ms/step": {"step_time_s": 0.15},
    "0.3 s per iteration": {"step_time_s": 0.3},
    "step time of 60.1 s": {"step_time_s": 60.1},
    "3.5 it/s": {"step_time_s": 1 / 3.5},
    "12 steps per minute": {"step_time_s": 5.0},
    "524,288 tokens/step": {"tokens_per_step": 524288},
    "0.5M tokens per batch": {"tokens_per_step": 5e5},
    "batch size of 4M tokens": {"tokens_per_step": 4e6},
    "global batch size 1024": {"global_batch_size": 1024},
    "512 sequences/step": {"global_batch_size": 512},
    "seq 8192": {"seq_len": 8192},
    "8k context": {"seq_len": 8192},
    "sequence length of 2048": {"seq_len": 2048},
    "MFU 45%": {"mfu": 0.45},
    "MFU=0.45": {"mfu": 0.45},
    "45% MFU": {"mfu": 0.45},
    "MFU of 45": {"mfu": 0.45},
    "model FLOPs utilization of 57.2%": {"mfu": 0.572},
    "HFU 60%": {"hfu": 0.6},
    "8xA100": {"num_devices": 8, "device": "a100-sxm-80gb"},
    "8 × A100-40GB": {"num_devices": 8, "device": "a100-sxm-40gb"},
    "2048 NVIDIA H100 GPUs": {"num_devices": 2048, "device": "h100-sxm"},
    "a single RTX 4090": {"num_devices": 1, "device": "rtx-4090"},
    "H100 x 64": {"num_devices": 64, "device": "h100-sxm"},
    "16 nodes of 8 H100": {"num_devices": 128, "device": "h100-sxm"},
    "24k tokens/s/GPU": {"tokens_per_s_per_device": 24e3},
    "1.5M tok/s": {"tokens_per_s_unlabeled": 1.5e6},
    "9600 tokens per second per GPU": {"tokens_per_s_per_device": 9600},
    "400 TFLOP/s/GPU": {"flops_per_s_per_device": 400e12},
    "1.2 PFLOPS": {"flops_per_s_unlabeled": 1.2e15},
    "peak of 312 TFLOPS": {"peak_flops_per_s": 312e12},
    "1.4T tokens": {"total_tokens": 1.4e12},
    "1.4 trillion tokens": {"total_tokens": 1.4e12},
    "a trillion tokens": {"total_tokens": 1e12},
    "21 days": {"wall_s": 21 * 86400},
    "3 weeks": {"wall_s": 21 * 86400},
    "82,432 GPU-hours": {"gpu_hours": 82432},
    "1.0M A100-hours": {"gpu_hours": 1e6, "device": "a100-sxm-80gb"},
    "7.7 GPU days": {"gpu_hours": 7.7 * 24},
    "3640 PF-days": {"total_flops": 3640e15 * 86400},
    "3.14e23 FLOPs": {"total_flops": 3.14e23},
    "600k iterations": {"steps": 6e5},
    "75 GB of memory": {"memory_bytes": 75e9},
    "uses 70 GiB per GPU": {"memory_bytes": 70 * 2**30, "memory_is_per_device": True},
    "peak memory 79 GB": {"memory_bytes": 79e9},
    "7B params": {"params": 7e9},
    "124M": {"params": 124e6},
    "1.5 billion parameters": {"params": 1.5e9},
    "37B active": {"active_params": 37e9},
    "GPT-2": {"config": "gpt2"},
    "Llama-2 70B": {"config": "llama-2-70b"},
    "bf16": {"precision": "bf16"},
    "FP8": {"precision": "fp8"},
    "TF32": {"precision": "tf32"},
    "QLoRA": {"lora": True, "quantized": True},
    "$672": {"cost_usd": 672},
    "2.4M USD": {"cost_usd": 2.4e6},
    "$3.50/GPU/h": {"usd_per_device_hour": 3.5},
    "tokens/step=524288; gpus=8": {"tokens_per_step": 524288, "num_devices": 8},
    "tokens/s: 1.2M": {"tokens_per_s_unlabeled": 1.2e6},
    "tokens/s 1,200,000": {"tokens_per_s_unlabeled": 1.2e6},
    "24k tokens/s 56% MFU": {"tokens_per_s_unlabeled": 24e3, "mfu": 0.56},
    "1000 steps 2 s/step": {"steps": 1000, "step_time_s": 2.0},
    "524\u202f288 tokens/step": {"tokens_per_step": 524288},
    "8×A100\u201180GB": {"num_devices": 8, "device": "a100-sxm-80gb"},
    "batch of 12 sequences of 1024 tokens": {"global_batch_size": 12, "seq_len": 1024},
    "~1.02M A100 GPU hours": {"gpu_hours": 1.02e6, "device": "a100-sxm-80gb"},
    "a 4090": {"num_devices": 1, "device": "rtx-4090"},
    "4090 tokens/s": {"tokens_per_s_unlabeled": 4090},
}


@pytest.mark.parametrize(("text", "expected"), READ.items(), ids=READ)
def test_figures_are_read(text, expected):
    read = read_claim(text)
    said = {name: value for name, value in vars(read.claim).items() if value not in (None, False)}
    if "device" in said:
        said["device"] = said["device"].key
    assert said == {name: pytest.approx(v) if isinstance(v, float) else v for name, v in expected.items()}
    assert not read.unread, read.unread


def test_what_cannot_be_read_is_said():
    report = fb.check_claim("frobnicated 12 widgets, 8xH100, MFU 40%, in the B100's shade")
    assert report.verdict == "plausible"
    assert any("12 widgets" in piece for piece in report.unread)
    assert any("b100" in piece for piece in report.unread)


def test_nothing_to_check_is_not_a_yes():
    report = fb.check_claim("it was quite fast")
    assert report.verdict == "unchecked" and not report.ok and report.unread


def test_a_figure_said_twice_is_noted():
    assert "said twice" in read_claim("8xA100, 16xH100").notes[0]


def test_fields_instead_of_text():
    report = fb.check_claim(mfu=1.04, hardware="h100")
    assert report.verdict == "impossible"
    report = fb.check_claim(
        step_time_s=0.15, hardware="a100", num_devices=8, tokens_per_step=524288, model="gpt2", precision="bf16"
    )
    assert report.verdict == "impossible"
    assert fb.check_claim({"mfu": 5.63}).verdict == "impossible"
    assert fb.check_claim("8xA100", tokens_per_step=524288, step_time_s=0.15, params=124e6).verdict == "impossible"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "needs a text"),
        ({"mfus": 1}, "no field 'mfus'.*Did you mean 'mfu'"),
        ({"mfu": -1}, "mfu must be a finite number above 0"),
        ({"hardware": "h1000"}, "Unknown hardware"),
        ({"precision": "bf17"}, "precision must be one of"),
        ({"config": "gpt-7"}, "neither a configuration file nor a preset"),
    ],
)
def test_wrong_fields_are_explained(fields, expected):
    with pytest.raises(fb.InvalidInputError, match=expected):
        fb.check_claim(**fields)


def test_the_report_is_json():
    document = json.loads(json.dumps(fb.check_claim("150 ms/step, 8xA100, 524288 tokens/step, 124M").to_json()))
    assert document["verdict"] == "impossible" and document["claim"]["device"] == "a100-sxm-80gb"
    assert document["checked"] and document["findings"][0]["kind"] == "impossible"


def test_peaks_by_name():
    a100, h100 = find_device("a100"), find_device("h100")
    assert is_right_peak(312e12, a100, "bf16") and not is_right_peak(624e12, a100, "bf16")
    assert "2:4 sparsity" in name_of_peak(624e12, a100, None)
    assert "TF32" in name_of_peak(156e12, a100, "bf16")
    assert "A100" in name_of_peak(312e12, h100, "bf16")
    assert name_of_peak(700e12, h100, "bf16") is None


@pytest.fixture
def score(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import claims
    from row_cells import read_rows

    return lambda path, step=1: claims.score(read_rows(path)[::step])[0]


def test_few_false_alarms_on_published_full_runs(score):
    found = score(BENCH / "published_full_runs.csv")
    assert found["claims"] >= 50 and found["false_alarms"] <= 0.05
    assert found["mistakes_found"]["a third of the GPU-hours"] >= 0.8


@pytest.mark.skipif(not SHARED.exists(), reason="the shared table of published runs is not here")
def test_few_false_alarms_on_other_published_runs(score):
    found = score(SHARED, step=15)
    assert found["claims"] >= 40 and found["false_alarms"] <= 0.05
    assert found["mistakes_found"]["MFU of the sparse peak"] >= 0.9
