"""``fb.calibrate`` on this machine with a tiny budget, and its parts with made-up clocks."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import fastbudget as fb
from fastbudget.cost.calibration import timing
from fastbudget.cost.calibration.all_reduce_benchmark import measure_all_reduce
from fastbudget.cost.calibration.operation_benchmarks import operation_benchmarks
from fastbudget.cost.calibration.scaled_reference import guessed_calibration
from fastbudget.cost.calibration.tensor_pool import TensorPool

SECONDS = 3.0


@dataclass(frozen=True)
class Call:
    call: Callable[[], Any]


def undisturbed_seconds(call):
    timer, until = timing.HostTimer(), time.perf_counter() + 5
    ((_, samples),) = timing.measure_in_turns([Call(call)], timer, until=until, most_rounds=9)
    return samples.undisturbed_s


@pytest.fixture(scope="module")
def measured():
    torch.optim.SGD([torch.zeros(1)])  # imports what a process's first optimizer does
    began = time.perf_counter()
    found = fb.calibrate(device="cpu", seconds=SECONDS)
    return found, time.perf_counter() - began


def test_the_limit_is_kept(measured):
    # Only a call that is under way may pass it.
    assert measured[1] < SECONDS + 1.0


def test_the_main_figures_are_there(measured):
    found, _ = measured
    assert found.device == "cpu" and found.threads == torch.get_num_threads() and torch.__version__ in found.software
    assert found.matrix_flops_per_s["fp32"] > 1e8
    # A machine that is busy enough reaches little more than the first.
    assert found.operations.measures("mm", "float32")
    assert set(found.operations.host_s) == {"forward", "backward", "optimizer", "evaluate"}
    assert all(1e-7 < seconds < 1e-3 for seconds in found.operations.host_s.values())


def test_nothing_private_is_written(measured, tmp_path):
    path = tmp_path / "calibration.json"
    measured[0].write(path)
    text = path.read_text()
    assert fb.Calibration.read(path) == measured[0]
    assert platform.node() not in text and "/" not in text and "host_name" not in text


def test_a_product_takes_what_was_measured(measured):
    found, _ = measured
    side = 512
    left, right = torch.rand(side, side), torch.rand(side, side)
    seconds = undisturbed_seconds(lambda: left @ right)
    predicted = found.operations.product_seconds("mm", "float32", (1, side, side, side))
    assert predicted == pytest.approx(seconds, rel=0.6)


def test_an_estimate_with_it_is_near_a_real_step(measured):
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
    inputs = torch.rand(256, 512)
    estimate = fb.estimate(model, inputs, hardware="cpu", mode="infer", precision="fp32", calibration=measured[0])
    with torch.no_grad():
        seconds = undisturbed_seconds(lambda: model(inputs))
    assert estimate.step_time_s.mid == pytest.approx(seconds, rel=0.6)


def test_a_guess_covers_what_models_do():
    found = guessed_calibration(torch.get_num_threads())
    for operation in ("mm", "addmm", "bmm", "convolution", "convolution_backward", "gelu", "native_layer_norm"):
        assert found.operations.measures(operation, "float32")
    assert guessed_calibration(torch.get_num_threads()) is found


@pytest.mark.parametrize(
    ("arguments", "words"), [({"seconds": 0}, "at least 1"), ({"device": "tpu"}, "'cpu' or 'cuda'")]
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(fb.InvalidInputError, match=words):
        fb.calibrate(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_explained():
    with pytest.raises(fb.InvalidInputError, match="sees no GPU"):
        fb.calibrate(device="cuda")


def test_benchmarks_count_as_traces_do():
    found = list(operation_benchmarks(TensorPool(torch.device("cpu"), 8 << 20), [torch.float32], quick=True))
    product = next(one for one in found if one.operation == "mm")
    batch, m, n, k = product.product
    assert batch == 1 and product.moved_bytes == 4 * (m * k + k * n + m * n)
    addition = next(one for one in found if one.operation == "add")
    assert addition.product is None and addition.moved_bytes == 3 * 4 * 2**12
    assert {"_scaled_dot_product_flash_attention_for_cpu_backward", "convolution_backward", "embedding"} <= {
        one.operation for one in found
    }


class Steps:
    """A timer that tells what it is told to."""

    def __init__(self, *seconds):
        self.left = list(seconds)

    def seconds(self, call, loops):
        return self.left.pop(0)


def test_the_faster_half_counts():
    # The first number of each call decides how often a sample repeats it.
    timer = Steps(1, 1, 5, 1.2, 9)
    ((_, samples),) = timing.measure_in_turns([Call(int)], timer, until=time.perf_counter() + 60, most_rounds=4)
    assert samples.seconds == [1, 5, 1.2, 9]
    assert samples.undisturbed_s == pytest.approx(1.1)


def test_what_would_pass_the_limit_is_left_out():
    calls, timer = [Call(int), Call(int)], Steps(0.1, 0.1, 99)
    taken = timing.measure_in_turns(calls, timer, until=time.perf_counter() + 50, most_rounds=4)
    assert [(call, samples.seconds) for call, samples in taken] == [(calls[0], [0.1])]


def test_spread_is_a_standard_deviation():
    values = torch.distributions.Normal(0.0, 0.1).icdf(torch.linspace(0.01, 0.99, 99)).exp()
    assert timing.Samples(values.tolist()).spread == pytest.approx(0.1, rel=0.05)


def test_all_reduce_between_two_processes():
    found = measure_all_reduce("cpu", 2, timeout_s=100)
    assert found is not None and found.ranks == 2
    assert 0 < found.latency_s < 1 and found.bytes_per_s > 1e6


def test_all_reduce_that_takes_too_long_is_left_out():
    assert measure_all_reduce("cpu", 2, timeout_s=0.01) is None
