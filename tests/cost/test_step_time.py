"""The step-time model: physics that must hold whatever the fitted constants are, and published times."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import fastbudget as fb
from fastbudget.cost import TrainingLayout, estimate_step_time, read_transformer
from fastbudget.hardware import find_device, known_devices

CASES = json.loads((Path(__file__).parent / "cases" / "published_step_times.json").read_text())
LLAMA = read_transformer("llama-7b")


def step(shape=LLAMA, hardware="h100-sxm", *, software=None, calibration=None, **layout):
    sizes = {"seq_len": 2048, "global_batch_size": 8, "num_devices": 8, "sharding": "zero3", **layout}
    return estimate_step_time(
        shape, TrainingLayout(**sizes), find_device(hardware), software=software, calibration=calibration
    )


def mid(*arguments, **options):
    return step(*arguments, **options).seconds.mid


@pytest.mark.parametrize("device", [device.key for device in known_devices()])
@pytest.mark.parametrize("mode", ["train", "infer", "decode"])
def test_every_device_answers(device, mode):
    for precision in ("bf16-mixed", "fp8-mixed", "fp32"):
        found = step(hardware=device, mode=mode, precision=precision)
        assert 0 < found.seconds.low < found.seconds.mid < found.seconds.high < math.inf
        assert sum(found.parts.values()) == pytest.approx(found.seconds.mid)
        assert min(found.parts.values()) >= 0
        assert 0 < found.mfu.low <= found.mfu.mid <= found.hfu.mid < 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_published_times_lie_in_the_interval(case):
    found = fb.estimate_transformer(case["config"], **case["arguments"])
    interval = getattr(found, case["quantity"])
    assert interval.low <= case["published"] <= interval.high
    assert interval.mid == pytest.approx(case["published"], rel=case["tolerance"])


def test_unknown_generation_is_said_and_widens():
    known, unknown = step(hardware="a100-80gb"), step(hardware="t4")
    assert known.extrapolating == ()
    assert any("NVIDIA T4" in words for words in unknown.extrapolating)
    assert unknown.seconds.high / unknown.seconds.mid > known.seconds.high / known.seconds.mid


def test_extrapolated_dimensions_are_named():
    found = step(seq_len=2**20, global_batch_size=8, offload="optimizer", optimizer="muon")
    assert {words.split(":")[0] for words in found.extrapolating} >= {"seq_len", "offload", "optimizer"}
    assert any(words.startswith("mode") for words in step(mode="decode").extrapolating)


def test_recompute_costs_time_and_raises_hfu_only():
    plain, full = step(), step(recompute="full")
    assert full.seconds.mid > 1.15 * plain.seconds.mid
    assert full.parts["recompute"] > 0
    assert full.hfu.mid / full.mfu.mid == pytest.approx(4 / 3, abs=0.03)
    assert plain.hfu == plain.mfu


def test_8_bits_speed_up_products_only():
    layout = {"seq_len": 8192, "software": "NeMo 24.12", "framework": "megatron"}
    wide, narrow = step(**layout), step(precision="fp8-mixed", **layout)
    assert narrow.parts["matrix_products"] < 0.7 * wide.parts["matrix_products"]
    assert narrow.parts["attention"] == pytest.approx(wide.parts["attention"])
    # MFU is a share of the 8-bit peak.
    assert narrow.mfu.mid < wide.mfu.mid


def test_pipeline_bubble_follows_the_formula():
    options = {"pipeline_parallel": 4, "global_batch_size": 32, "sharding": "none", "num_devices": 4}
    once, twice = step(**options), step(virtual_pipeline=2, **options)
    work = sum(
        once.parts[name] for name in ("matrix_products", "attention", "memory_bound", "launch_floor")
    )  # of 32 micro-batches on the slowest stage
    assert once.parts["pipeline_bubble"] == pytest.approx(work * 3 / 32, rel=0.1)
    assert twice.parts["pipeline_bubble"] == pytest.approx(once.parts["pipeline_bubble"] / 2, rel=0.2)


def test_tensor_parallelism_needs_a_fast_link():
    shape = read_transformer("llama-65b")
    options = {"tensor_parallel": 8, "global_batch_size": 16, "sharding": "none"}
    fast, slow = step(shape, **options), step(shape, "h100-pcie", **options)
    assert slow.parts["tensor_communication"] > 3 * fast.parts["tensor_communication"]


def test_communication_hides_behind_long_passes():
    short = step(num_devices=64, global_batch_size=64, seq_len=256)
    long = step(num_devices=64, global_batch_size=64, seq_len=8192)
    share = [found.parts["data_communication"] / found.seconds.mid for found in (short, long)]
    assert share[0] > 3 * share[1]


def test_small_models_wait_for_the_host():
    tiny = read_transformer("pythia-160m")
    found = step(tiny, num_devices=1, global_batch_size=1, seq_len=128, sharding="none")
    assert found.parts["launch_floor"] > found.seconds.mid / 3
    large = step(num_devices=1, sharding="none", micro_batch_size=4)
    assert large.parts["launch_floor"] < 0.01 * large.seconds.mid


def test_adapters_save_the_frozen_weights_gradients():
    full = mid(sharding="none")
    adapted = mid(sharding="none", lora_rank=16)
    quantized = mid(sharding="none", lora_rank=16, quantized_base=True)
    assert adapted < 0.85 * full
    assert quantized > adapted


def test_experts_cost_what_a_token_visits():
    mixture = read_transformer("mixtral-8x7b")
    dense = read_transformer("llama-13b")  # as many parameters as a token visits
    options = {"seq_len": 4096, "micro_batch_size": 4, "global_batch_size": 4, "num_devices": 1, "sharding": "none"}
    ratio = step(mixture, **options).parts["matrix_products"] / step(dense, **options).parts["matrix_products"]
    assert 0.8 < ratio < 1.6


def test_work_grows_with_the_batch():
    options = {"num_devices": 1, "sharding": "none"}
    assert mid(global_batch_size=16, **options) == pytest.approx(2 * mid(global_batch_size=8, **options), rel=0.1)


def test_context_parallelism_divides_a_sequence():
    options = {"seq_len": 131072, "global_batch_size": 1, "sharding": "zero3"}
    alone = mid(num_devices=1, **options)
    shared = mid(num_devices=8, context_parallel=8, **options)
    assert alone / 8 < shared < alone / 5


def test_offloading_is_slow():
    assert mid(offload="optimizer") > mid() and mid(offload="all") > mid(offload="optimizer")


def test_older_software_is_not_taken_for_newer():
    assert step(software="Megatron-LM 2021").seconds != step(software="NeMo 25.04").seconds


def test_calibration_replaces_rates_and_narrows():
    base = step()
    calibration = fb.Calibration(
        device="h100-sxm",
        date="2026-11-01",
        software="torch 2.13.0",
        matrix_flops_per_s={"bf16": 400e12},
        memory_bytes_per_s=2e12,
        launch_s=5e-6,
        all_reduce_bytes_per_s=400e9,
        all_reduce_latency_s=3e-5,
    )
    found = step(calibration=calibration)
    assert found.seconds.mid > base.seconds.mid
    assert found.seconds.high / found.seconds.low < base.seconds.high / base.seconds.low
    with pytest.raises(fb.InvalidInputError, match="must be measured on a100"):
        step(hardware="a100-80gb", calibration=calibration)


def test_calibration_survives_its_file(tmp_path):
    calibration = fb.Calibration(
        device="a100-sxm-80gb", date="2026-11-01", software="torch", matrix_flops_per_s={"bf16": 2e14}, notes=("busy",)
    )
    path = tmp_path / "calibration.json"
    calibration.write(path)
    assert fb.Calibration.read(path) == calibration
    arguments = {"seq_len": 2048, "global_batch_size": 1, "hardware": "a100-80gb"}
    by_path = fb.estimate_transformer("llama-7b", calibration=path, **arguments)
    assert by_path.step_time_s == fb.estimate_transformer("llama-7b", calibration=calibration, **arguments).step_time_s


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a readable calibration"),
        ("[]", "not a calibration of version"),
        ('{"version": 0}', "not a calibration of version"),
        ('{"version": 1}', "not a complete calibration"),
        ('{"version": 1, "device": "t4", "date": "", "software": "", "launch_s": -1}', "must be positive"),
    ],
)
def test_bad_calibrations_are_refused(tmp_path, content, message):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    with pytest.raises(fb.InvalidInputError, match=message):
        fb.Calibration.read(path)


def test_devices_without_any_peak_are_refused():
    bare = replace(find_device("t4"), key="mystery", fp16_flops_per_s=None, fp32_flops_per_s=None)
    with pytest.raises(fb.InvalidInputError, match="no known peak"):
        estimate_step_time(LLAMA, TrainingLayout(seq_len=128, global_batch_size=1), bare)


def test_device_hours_are_steps_and_what_runs_lose():
    arguments = {"seq_len": 2048, "global_batch_size": 8, "num_devices": 8, "hardware": "a100", "sharding": "zero3"}
    found = fb.estimate_transformer("llama-7b", tokens=10**9, **arguments)
    steps_only = found.step_time_s.mid * 10**9 / (8 * 2048) * 8 / 3600
    assert steps_only < found.gpu_hours.mid < 1.4 * steps_only
    assert found.wall_hours.mid == pytest.approx(found.gpu_hours.mid / 8)
    assert found.tokens_per_s_per_device.mid == pytest.approx(2048 / found.step_time_s.mid)
    without = fb.estimate_transformer("llama-7b", **arguments)
    assert without.gpu_hours is None and without.wall_hours is None
