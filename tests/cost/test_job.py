"""Whole jobs: data to steps, lines to totals, interruptions, energy and money."""

import math

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.core.young_daly import checkpoint_interval
from fastbudget.cost.job.checkpoint_size import checkpoint_bytes
from fastbudget.cost.job.energy import PUE, energy_kwh
from fastbudget.cost.job.interruptions import DEVICE_HOURS_BETWEEN_FAILURES, count_interruptions
from fastbudget.cost.job.interval_sums import independent_product, independent_sum
from fastbudget.cost.job.job_accounting import LINES, account_job
from fastbudget.hardware import find_device

A100 = find_device("a100-80gb")
STEP = fb.Interval(0.9, 1.0, 1.2)


def job(**changes):
    fields = {"config": "gpt2", "tokens": 10**10, "seq_len": 1024, "global_batch_size": 512}
    return fb.TrainingJob(**(fields | changes))


def account(of=None, conditions=None, step=STEP, **where):
    of = of or job()
    conditions = conditions or fb.JobConditions()
    layout = of.layout(**where)
    return account_job(of, step_time_s=step, mfu=0.4, layout=layout, device=A100, conditions=conditions)


# --- data ---------------------------------------------------------------------------------------


def test_tokens_become_steps():
    assert job(tokens=512 * 1024 * 100).num_steps == 100
    assert job(tokens=512 * 1024 * 100 + 1).num_steps == 101
    assert job(tokens=1e12).tokens == 10**12
    assert job(tokens=512 * 1024 * 10, epochs=2.5).num_steps == 25


def test_padding_is_computed_and_not_useful():
    padded = fb.TrainingJob(config="gpt2", examples=1000, tokens_per_example=256, seq_len=1024, global_batch_size=10)
    assert padded.num_steps == 100 and padded.effective_tokens == 256_000 and padded.waste == 0.75
    packed = fb.TrainingJob(
        config="gpt2", examples=1000, tokens_per_example=256, packed=True, seq_len=1024, global_batch_size=10
    )
    assert packed.num_steps == 25 and packed.effective_tokens == 256_000
    wasteful = fb.TrainingJob(
        config="gpt2", examples=1000, tokens_per_example=256, packed=True, padding_waste=0.2, seq_len=1024,
        global_batch_size=10,
    )  # fmt: skip
    assert wasteful.num_steps == math.ceil(25 / 0.8)
    assert job(padding_waste=0.5).num_steps == pytest.approx(2 * job().num_steps, abs=1)


def test_augmentation_multiplies_what_is_trained_on():
    assert job(augmentation=4).num_steps == pytest.approx(4 * job().num_steps, abs=3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tokens": 0}, "tokens must be a whole number of at least 1, got 0"),
        ({"tokens": -5}, "tokens must be a whole number"),
        ({"tokens": 1.5}, "tokens must be a whole number"),
        ({"tokens": float("nan")}, "tokens must be a whole number"),
        ({"tokens": None}, "either tokens or examples"),
        ({"examples": 5}, "either tokens or examples"),
        ({"tokens_per_example": 5}, "tokens_per_example needs examples"),
        ({"epochs": 0}, "epochs must be a finite number above 0"),
        ({"padding_waste": 1.0}, r"padding_waste must be a share in \[0, 1\)"),
        ({"buffer": -0.1}, "buffer must be a share of at least 0"),
        ({"evaluations": 3}, "either evaluation_tokens or evaluation_s"),
        ({"evaluation_tokens": 3}, "say how often"),
        ({"evaluations": 3, "evaluate_every_steps": 3, "evaluation_s": 1}, "not both"),
        ({"seq_len": 0}, "seq_len must be an integer"),
        ({"precision": "bf17"}, "Unknown precision"),
        ({"tokens": None, "examples": 10, "tokens_per_example": 5000}, "at most seq_len"),
    ],
)
def test_a_wrong_job_is_explained(changes, expected):
    with pytest.raises(fb.InvalidInputError, match=expected):
        job(**changes)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"price": -1.0}, "price must be a number above 0, got -1.0"),
        ({"spot_price": 0}, "spot_price must be a number above 0"),
        ({"pue": 0.9}, "pue is at least 1"),
        ({"power_share": 80}, "power_share is a share"),
        ({"devices_per_node": 0}, "devices_per_node must be"),
        ({"startup_s": float("nan")}, "startup_s must be a finite number of at least 0"),
    ],
)
def test_wrong_conditions_are_explained(fields, expected):
    with pytest.raises(fb.InvalidInputError, match=expected):
        fb.JobConditions(**fields)


def test_an_unknown_region_is_answered():
    with pytest.raises(fb.InvalidInputError, match=r"Unknown region 'franc'.*Did you mean 'france'"):
        account(conditions=fb.JobConditions(region="franc"))


# --- sums ---------------------------------------------------------------------------------------


def test_independent_errors_add_as_squares():
    total = independent_sum(fb.Interval(7, 10, 14), fb.Interval(16, 20, 23))
    assert (total.low, total.mid, total.high) == (25, 30, 35)
    product = independent_product(fb.Interval(1, 2, 4), fb.Interval(5, 10, 20))
    assert product.mid == 20 and product.high == pytest.approx(20 * 2 ** math.sqrt(2))


def test_the_sum_holds_80_percent_of_simulated_sums():
    draws = np.random.default_rng(0)
    terms = [(10.0, 0.3), (30.0, 0.1), (5.0, 0.5)]
    z80 = 1.2816
    ends = [fb.Interval(m * math.exp(-z80 * s), m, m * math.exp(z80 * s)) for m, s in terms]
    total = independent_sum(*ends)
    simulated = sum(m * np.exp(s * draws.standard_normal(100_000)) for m, s in terms)
    inside = np.mean((simulated >= total.low) & (simulated <= total.high))
    assert 0.77 < inside < 0.83


# --- lines and totals ---------------------------------------------------------------------------


def test_every_line_is_there_and_the_buffer_is_a_share_of_the_rest():
    found = account(job(evaluate_every_steps=1000, evaluation_tokens=10**7), num_devices=8)
    assert tuple(found.lines) == LINES
    assert found.lines["steps"].mid == found.num_steps
    rest = sum(line.mid for name, line in found.lines.items() if name != "buffer")
    assert found.lines["buffer"].mid == pytest.approx(0.25 * rest)
    assert found.wall_hours.mid * 3600 == pytest.approx(1.25 * rest)
    assert found.gpu_hours.mid == pytest.approx(8 * found.wall_hours.mid)
    bare = account(job(buffer=0.0), num_devices=8)
    assert bare.lines["buffer"] == fb.Interval(0, 0, 0)
    assert found.wall_hours.low < found.wall_hours.mid < found.wall_hours.high


def test_steps_and_evaluations_err_together_the_rest_by_itself():
    found = account(job(buffer=0.0), num_devices=8)
    above = found.wall_hours.high - found.wall_hours.mid
    steps = found.lines["steps"]
    naive = sum(line.high - line.mid for line in found.lines.values()) / 3600
    assert (steps.high - steps.mid) / 3600 < above < naive


def test_evaluation_takes_a_forward_pass_of_its_tokens():
    one = account(job(evaluations=1, evaluation_tokens=3 * 512 * 1024), num_devices=8)
    assert one.lines["evaluation"].mid == pytest.approx(1.0)  # three steps' tokens, a third of the work
    timed = account(job(evaluations=7, evaluation_s=30.0), num_devices=8)
    assert timed.lines["evaluation"] == fb.Interval(210, 210, 210)


def test_one_device_of_a_node_is_billed_as_one():
    conditions = fb.JobConditions(price=2.0)
    alone = account(conditions=conditions, num_devices=1)
    assert alone.billed_devices == 1
    assert alone.usd.mid == pytest.approx(2.0 * alone.wall_hours.mid)
    whole = account(conditions=fb.JobConditions(price=2.0, whole_nodes=True), num_devices=1)
    assert whole.billed_devices == 8 and whole.num_devices == 1
    assert whole.usd.mid == pytest.approx(8 * alone.usd.mid)
    assert whole.kwh == alone.kwh  # the idle devices of others aren't this job's energy


def test_without_a_price_hours_are_given_and_usd_is_none():
    gaudi = find_device("gaudi2")
    found = account_job(
        job(), step_time_s=STEP, mfu=0.4, layout=job().layout(), device=gaudi, conditions=fb.JobConditions()
    )
    assert found.usd is None and found.usd_on_demand is None and found.usd_spot is None and found.price is None
    assert found.gpu_hours.mid > 0
    assert any("no price" in words for words in found.assumptions)


def test_the_document_is_json(tmp_path):
    import json

    document = json.loads(json.dumps(account(num_devices=8).to_json()))
    assert document["price"]["date"] == "2026-11-30" and document["lines_s"]["steps"]["mid"] > 0


# --- interruptions ------------------------------------------------------------------------------


def test_llama_3_interruptions():
    # 466 in 54 days on 16,384 devices (arXiv:2407.21783): our mid says so, by construction and by arithmetic.
    device_hours = 16384 * 54 * 24
    assert device_hours / DEVICE_HOURS_BETWEEN_FAILURES.mid == pytest.approx(466)
    # Over 90% effective time was kept: our expectation of what interruptions and saves cost must allow that.
    lost = count_interruptions(
        0.9 * 54 * 86400,
        stall_s=fb.Interval(5, 10, 20),
        num_devices=16384,
        conditions=fb.JobConditions(),
        spot=False,
    )
    assert (lost.failures.mid + lost.checkpoints.mid) / (54 * 86400) < 0.12


def test_saves_come_at_the_young_daly_interval():
    conditions = fb.JobConditions(device_hours_between_failures=1000.0)
    found = count_interruptions(1e6, stall_s=fb.Interval(60, 60, 60), num_devices=10, conditions=conditions, spot=False)
    assert found.checkpoint_interval_s == pytest.approx(math.sqrt(2 * 60 * 100 * 3600))
    assert found.checkpoint_interval_s == checkpoint_interval(60, 100 * 3600)


def test_no_other_interval_loses_less():
    def lost(interval):
        found = count_interruptions(
            1e7,
            stall_s=fb.Interval(60, 60, 60),
            num_devices=64,
            conditions=fb.JobConditions(device_hours_between_failures=2000.0),
            spot=False,
            interval_s=interval,
        )
        return found.failures.mid + found.checkpoints.mid

    best = lost(None)
    assert all(best <= lost(interval) * 1.01 for interval in (500, 1000, 2000, 5000, 10_000, 30_000))


def test_daly_s_expectation_matches_a_simulation():
    rate, interval, stall, restart, work = 1 / 5000, 800.0, 50.0, 300.0, 80_000.0
    draws = np.random.default_rng(1)
    walls = []
    for _ in range(400):
        wall = 0.0
        for _ in range(round(work / interval)):
            while (failure := draws.exponential(1 / rate)) < interval + stall:
                wall += failure
                while (again := draws.exponential(1 / rate)) < restart:  # restarts are interrupted too
                    wall += again
                wall += restart
            wall += interval + stall
        walls.append(wall)
    conditions = fb.JobConditions(device_hours_between_failures=5000 / 3600, restart_s=restart)
    found = count_interruptions(
        work, stall_s=fb.Interval(stall, stall, stall), num_devices=1, conditions=conditions, spot=False,
        interval_s=interval,
    )  # fmt: skip
    expected = work + found.checkpoints.mid + found.failures.mid
    assert np.mean(walls) == pytest.approx(expected, rel=0.02)


def test_spot_costs_less_by_the_hour_and_takes_longer():
    found = account(num_devices=8)
    spot = account(conditions=fb.JobConditions(spot=True), num_devices=8)
    assert spot.lines["spot_interruptions"].mid > 0 == found.lines["spot_interruptions"].mid
    assert spot.wall_hours.mid > found.wall_hours.mid
    assert spot.usd == spot.usd_spot and spot.usd_spot == found.usd_spot
    assert spot.usd_spot.mid > spot.spot_price.usd_per_device_hour * found.gpu_hours.mid
    assert spot.checkpoint_interval_s < found.checkpoint_interval_s


def test_hopeless_spot_jobs_are_refused_not_priced():
    conditions = {"spot_hours_between_interruptions": 0.5}
    assert account(conditions=fb.JobConditions(**conditions), num_devices=64).usd_spot is None
    with pytest.raises(fb.InvalidInputError, match="8 spot nodes are interrupted faster"):
        account(conditions=fb.JobConditions(spot=True, **conditions), num_devices=64)


def test_a_job_that_saves_too_seldom_is_refused():
    forever = job(tokens=10**13, checkpoint_every_steps=10**8)
    with pytest.raises(fb.InvalidInputError, match="Save more often"):
        account(forever, num_devices=512)


@pytest.mark.parametrize("tokens", [1, 10**9, 10**16])
@pytest.mark.parametrize("devices", [1, 512])
@pytest.mark.parametrize("spot", [False, True])
def test_every_interval_is_ordered_and_finite(tokens, devices, spot):
    step = fb.Interval(1e-4, 1e-3, 1e-1)
    found = account(job(tokens=tokens), fb.JobConditions(spot=spot, spot_price=1.0), step, num_devices=devices)
    for interval in (*found.lines.values(), found.wall_hours, found.gpu_hours, found.kwh, found.co2e_kg, found.usd):
        assert 0 <= interval.low <= interval.mid <= interval.high < math.inf
    assert found.gpu_hours.mid > 0


def test_a_checkpoint_holds_weights_and_states():
    # BLOOM-176B: 2.3 TB with optimizer states (bigscience chronicles): bf16 weights, float32 copies, two moments.
    bloom = fb.TrainingJob(config="bloom-176b", tokens=1, seq_len=2048, global_batch_size=2048)
    found = checkpoint_bytes(bloom.shape, bloom.layout(framework="megatron"))
    assert found == pytest.approx(2.3e12, rel=0.10)
    adapters = fb.TrainingJob(config="llama-7b", tokens=1, seq_len=128, global_batch_size=1, lora_rank=8)
    assert checkpoint_bytes(adapters.shape, adapters.layout()) < 100e6


# --- energy -------------------------------------------------------------------------------------


def test_llama_energy_with_its_authors_conventions():
    # LLaMA-65B: 1,022,362 A100 hours at 400 W and a PUE of 1.1 are 449 MWh (arXiv:2302.13971, table 15).
    conditions = fb.JobConditions(power_share=1.0, host_share=0.0, pue=1.1)
    hours = fb.Interval(1_022_362, 1_022_362, 1_022_362)
    assert energy_kwh(A100, hours, 0.45, conditions).mid == pytest.approx(449_000, rel=0.005)


def test_a_busy_node_draws_what_was_measured():
    # 76% of the 10.2 kW of an 8-GPU H100 node in compute-intensive training (arXiv:2506.14551).
    found = energy_kwh(find_device("h100"), fb.Interval(8, 8, 8), 0.4, fb.JobConditions(pue=1.0))
    assert found.mid == pytest.approx(0.76 * 10.2, rel=0.01)
    assert found.low < 0.7 * 10.2 and found.high > 8.4
    assert PUE.low >= 1


def test_without_a_power_limit_there_is_no_energy():
    tpu = find_device("tpu-v5p")
    assert tpu.tdp_w is None
    found = account_job(
        job(), step_time_s=STEP, mfu=0.4, layout=job().layout(), device=tpu, conditions=fb.JobConditions()
    )
    assert found.kwh is None and found.co2e_kg is None and found.usd.mid > 0
    assert any("power" in words for words in found.assumptions)


def test_emissions_follow_the_grid():
    france = account(conditions=fb.JobConditions(region="france"), num_devices=8)
    poland = account(conditions=fb.JobConditions(region="Poland"), num_devices=8)
    assert poland.co2e_kg.mid / france.co2e_kg.mid == pytest.approx(0.661926 / 0.056039)
    given = account(conditions=fb.JobConditions(grid_kg_per_kwh=0.1), num_devices=8)
    assert given.co2e_kg.mid == pytest.approx(0.1 * given.kwh.mid)


# --- the public function ------------------------------------------------------------------------


def test_job_cost_times_the_job_it_is_given():
    small = job(tokens=10**9)
    found = fb.job_cost(small, hardware="a100-80gb", num_devices=8, micro_batch_size=32, price=1.5)
    assert found.step_time_s.mid > 0 and found.usd.mid == pytest.approx(1.5 * found.gpu_hours.mid)
    twice = fb.job_cost(job(tokens=2 * 10**9), hardware="a100-80gb", num_devices=8, micro_batch_size=32, price=1.5)
    assert twice.lines["steps"].mid == pytest.approx(2 * found.lines["steps"].mid, rel=0.001)


def test_52_thousand_examples_take_several_times_9_thousand():
    def hours(examples):
        tuning = fb.TrainingJob(
            config="llama-33b", examples=examples, seq_len=512, global_batch_size=16, lora_rank=64, quantized_base=True,
            precision="bf16", buffer=0.0,
        )  # fmt: skip
        return fb.job_cost(tuning, hardware="a100-80gb").gpu_hours.mid

    assert hours(52_000) > 4 * hours(9_000)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"hardware": "h1000"}, "Unknown hardware"),
        ({"hardware": "h100", "num_devices": 3}, "multiple"),
        ({"hardware": "h100", "num_devices": 8, "tensor_parallel": 8}, "heads"),
        ({"hardware": "h100", "price": "nebuis"}, "Unknown provider"),
        ({"hardware": "h100", "price": -2.0}, "price must be a number above 0"),
    ],
)
def test_wrong_arguments_are_explained(where, expected):
    with pytest.raises(fb.InvalidInputError, match=expected):
        fb.job_cost(job(), **where)


def test_an_estimate_has_a_price():
    found = fb.estimate_transformer(
        "gpt2", tokens=10**9, seq_len=1024, global_batch_size=512, hardware="a100-80gb", num_devices=8, price=1.5
    )
    assert found.cost_usd.mid == pytest.approx(1.5 * found.gpu_hours.mid)
    unpriced = fb.estimate_transformer("gpt2", tokens=1e9, seq_len=1024, global_batch_size=8, hardware="gaudi2")
    assert unpriced.cost_usd is None and unpriced.gpu_hours.mid > 0
    one_step = fb.estimate_transformer("gpt2", seq_len=1024, global_batch_size=8, hardware="h100")
    assert one_step.cost_usd is None and one_step.price.device == "h100-sxm"
