"""The fit finds constants that made the times, stays at its priors where nothing tells, and resists outliers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "cost"

pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="bench/ lies in the source tree only")


@pytest.fixture
def runtime_fit(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import runtime_fit

    return runtime_fit


def made_steps(runtime_fit, constants):
    from fastbudget.cost import TrainingLayout, read_transformer
    from fastbudget.hardware import find_device

    steps = []
    for index, name in enumerate(["gpt2", "tinyllama-1.1b", "llama-7b", "llama-13b"]):
        for seq_len in (512, 1024):
            for micro_batch in (1, 8):
                layout = TrainingLayout(seq_len=seq_len, global_batch_size=8, micro_batch_size=micro_batch)
                step = runtime_fit.MeasuredStep(
                    publisher=f"publisher {index}",
                    shape=read_transformer(name),
                    layout=layout,
                    device=find_device("a100-80gb"),
                    software=None,
                    seconds=1.0,
                )
                steps.append(replace(step, seconds=runtime_fit.predicted_seconds(step, constants)))
    return steps


def test_known_constants_are_found(runtime_fit):
    prior = runtime_fit.prior_constants()
    truth = replace(prior, measured_share=0.8, launch_s=1.2e-5)
    steps = made_steps(runtime_fit, truth)
    found = runtime_fit.fit_constants(steps, prior=prior, free=("measured_share", "launch_s"), prior_width=100.0)
    assert found.constants.measured_share == pytest.approx(0.8, rel=0.01)
    assert found.constants.launch_s == pytest.approx(1.2e-5, rel=0.02)
    assert max(abs(found.errors)) < 0.01
    assert found.constants.link_share == prior.link_share


def test_an_outlier_hardly_moves_the_fit(runtime_fit):
    prior = runtime_fit.prior_constants()
    steps = made_steps(runtime_fit, replace(prior, measured_share=0.8))
    steps[0] = replace(steps[0], seconds=10 * steps[0].seconds)
    found = runtime_fit.fit_constants(steps, prior=prior, free=("measured_share",), prior_width=100.0)
    assert found.constants.measured_share == pytest.approx(0.8, rel=0.02)


def test_a_publisher_left_out_has_no_say(runtime_fit):
    import numpy as np

    prior = runtime_fit.prior_constants()
    steps = made_steps(runtime_fit, prior)
    odd = [replace(step, seconds=step.seconds * math.e) if step.publisher == "publisher 3" else step for step in steps]
    fitted = runtime_fit.fit_constants(odd, prior=prior, free=("measured_share",))
    kept = np.array([step.publisher != "publisher 3" for step in odd])
    without = fitted.vector.constants(fitted.best_point(kept))
    assert abs(fitted.constants.measured_share - prior.measured_share) > 3 * abs(
        without.measured_share - prior.measured_share
    )


def test_no_publisher_has_more_rows_than_its_share(runtime_fit):
    prior = runtime_fit.prior_constants()
    steps = [replace(step, publisher="one") for step in made_steps(runtime_fit, prior)]
    assert len(runtime_fit.thinned(steps, 5)) == 5
    assert runtime_fit.thinned(steps, 100) == steps
