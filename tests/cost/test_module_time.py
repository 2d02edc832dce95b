"""Step times of traced modules, with made-up rates whose answers can be computed by hand, and on GPUs."""

import math

import pytest
import torch
from torch import nn

import fastbudget as fb
from fastbudget.cost import PHASES, OperationTimes, trace_step
from fastbudget.cost.module_time.operation_timing import PARTS, operation_seconds

RATE, BANDWIDTH, HOST = 1e11, 1e10, 1e-5
BATCH, WIDTH, LAYERS = 64, 128, 3


class Network(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(LAYERS)))

    def forward(self, x):
        return self.layers(x).float().pow(2).mean()


def rows(batch=BATCH):
    return torch.zeros(batch, WIDTH)


def calibration(**more):
    shapes = [(1, m, n, k) for m in (32, 1024) for n in (32, 1024) for k in (32, 1024)]
    operations = OperationTimes(
        products={"mm float32": [[*shape, 2 * math.prod(shape) / RATE] for shape in shapes]},
        passes={"mul float32": [[1e3, 1e3 / BANDWIDTH], [1e7, 1e7 / BANDWIDTH]]},
        host_s=dict.fromkeys(("forward", "backward", "optimizer", "evaluate"), HOST),
    )
    settings = {"device": "cpu", "date": "2026-11-30", "software": "made up", "operations": operations} | more
    return fb.Calibration(**settings)


def estimate(inputs=rows, **more):
    settings = {"hardware": "cpu", "precision": "fp32", "calibration": calibration()} | more
    return fb.estimate(Network, inputs, **settings)


def test_every_operation_is_timed():
    found = estimate(mode="infer")
    table = trace_step(Network, rows, mode="infer").operations
    ran = table.phase == PHASES.index("evaluate")
    moved = table.moved_bytes[ran & (table.flops == 0)].sum()
    expected = table.flops[ran].sum() / RATE + moved / BANDWIDTH + HOST * ran.sum()
    assert found.step_time_s.mid == pytest.approx(expected, rel=0.02)
    assert set(found.time_parts) == {"forward"}


def test_parts_sum_to_the_middle_and_operations_to_the_computation():
    found = estimate()
    assert sum(found.time_parts.values()) == pytest.approx(found.step_time_s.mid)
    assert {"forward", "backward", "optimizer"} <= set(found.time_parts)
    computed = sum(value for part, value in found.time_parts.items() if part in PARTS)
    assert sum(found.time_by_operation.values()) == pytest.approx(computed)
    assert sum(found.time_by_module.values()) == pytest.approx(computed)
    seconds = list(found.time_by_operation.values())
    assert seconds == sorted(seconds, reverse=True)
    assert {"layers.0.0", "layers.2.1"} <= set(found.time_by_module)


def test_accumulation_repeats_the_passes_only():
    once, twice = estimate(), estimate(grad_accumulation=2)
    assert twice.time_parts["forward"] == pytest.approx(2 * once.time_parts["forward"], rel=0.1)
    assert twice.time_parts["optimizer"] == pytest.approx(once.time_parts["optimizer"])


def test_recompute_is_a_part_of_its_own_and_no_model_flops():
    plain, again = estimate(), estimate(recompute="full")
    assert "recompute" not in plain.time_parts
    assert again.time_parts["recompute"] == pytest.approx(plain.time_parts["forward"], rel=0.35)
    assert again.step_time_s.mid > plain.step_time_s.mid
    assert again.hfu.mid > again.mfu.mid and plain.hfu == plain.mfu


def test_ranks_wait_for_each_other():
    alone = estimate()
    slow = calibration(all_reduce_bytes_per_s=1e6, all_reduce_latency_s=1e-3)
    waits = {
        sharding: estimate(num_devices=4, sharding=sharding, calibration=slow).time_parts["communication"]
        for sharding in ("none", "zero1", "zero3")
    }
    gradients = 4 * alone.num_params * 3 / 4 / 1e6
    assert waits["none"] == pytest.approx(2 * gradients, rel=0.1)
    assert waits["zero3"] == pytest.approx(3 * gradients, rel=0.1)
    sharded = estimate(num_devices=4, sharding="zero1", calibration=slow)
    assert sharded.time_parts["optimizer"] == pytest.approx(alone.time_parts["optimizer"] / 4)


def test_what_is_not_measured_is_said():
    assert any("guessed from others" in words for words in estimate().extrapolating)
    threads = estimate(calibration=calibration(threads=torch.get_num_threads() + 1))
    assert any(words.startswith("threads:") for words in threads.extrapolating)
    ethernet = estimate(num_devices=2)
    assert any("Ethernet" in words for words in ethernet.extrapolating)


def test_nothing_is_free_in_a_calibration_that_was_cut_short():
    products = calibration().operations.products
    cut = estimate(calibration=calibration(operations=OperationTimes(products=products)))
    assert cut.time_by_operation["threshold_backward"] > 0
    assert any("guessed from others" in words for words in cut.extrapolating)


def test_a_noisy_calibration_widens_the_interval():
    quiet, noisy = estimate(), estimate(calibration=calibration(spread=0.5))
    assert noisy.step_time_s.mid == quiet.step_time_s.mid
    assert noisy.step_time_s.high > 1.2 * quiet.step_time_s.high


def test_a_cpu_that_was_not_calibrated_gets_a_wide_guess():
    found = estimate(calibration=None)
    assert found.extrapolating[0].startswith("not calibrated")
    interval = found.step_time_s
    assert 0 < interval.low < interval.mid < interval.high < math.inf
    assert interval.high / interval.low > estimate().step_time_s.high / estimate().step_time_s.low


@pytest.mark.parametrize("hardware", ["h100-sxm", "a100-80gb", "v100", "t4", "rtx4090", "mi300x", "b200"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "fp32"])
def test_gpus_answer_from_fitted_rates(hardware, precision):
    found = estimate(hardware=hardware, precision=precision, calibration=None)
    interval = found.step_time_s
    assert 0 < interval.low < interval.mid < interval.high < math.inf
    assert 0 < found.mfu.mid < 1
    assert any("not calibrated" in words for words in found.extrapolating)


def test_small_models_are_bound_by_launches_and_large_ones_by_arithmetic():
    def wide():
        return Network(8192)

    def wide_rows():
        return torch.zeros(8192, 8192)

    large = fb.estimate(wide, wide_rows, hardware="h100-sxm", precision="bf16")
    small = fb.estimate(Network, rows, hardware="h100-sxm", precision="bf16")
    assert 0.3 < large.mfu.mid < 0.9
    assert small.mfu.mid < 0.02
    double = fb.estimate(Network, lambda: rows(2 * BATCH), hardware="h100-sxm", precision="bf16")
    assert double.step_time_s.mid == pytest.approx(small.step_time_s.mid, rel=0.05)


def test_a_faster_gpu_is_faster():
    def seconds(hardware):
        return fb.estimate(lambda: Network(4096), lambda: torch.zeros(4096, 4096), hardware=hardware).step_time_s.mid

    assert seconds("h100-sxm") < seconds("a100-80gb") < seconds("t4")


def test_any_gpu_has_no_time():
    found = estimate(hardware="cuda", calibration=None)
    assert found.step_time_s is None and found.mfu is None and found.time_parts == {}


def test_a_calibration_of_another_device_is_refused():
    with pytest.raises(fb.InvalidInputError, match="measured on h100-sxm, got one of cpu"):
        estimate(hardware="h100")


def test_an_empty_step_takes_no_time():
    table = trace_step(Network, rows, mode="infer").operations
    assert operation_seconds(table, lambda operation: 1.0, step=1).device_s.sum() == 0
