"""Generating text: bounds that physics sets, published speeds, prices, bad input."""

import json
from pathlib import Path

import pytest

import fastbudget as fb
from fastbudget.hardware import find_device

CASES = json.loads((Path(__file__).parent / "cases" / "inference_speeds.json").read_text())
A100 = find_device("a100-80gb")


def infer(config="llama-7b", **changes):
    arguments = {"hardware": "a100-80gb", "prompt_len": 512, "output_len": 128}
    return fb.estimate_inference(config, **(arguments | changes))


def test_a_token_cannot_be_made_before_the_weights_are_read():
    for batch in (1, 8, 64):
        found = infer(batch_size=batch)
        read = found.weight_bytes + found.kv_cache_bytes * (512 + 64) / (512 + 128)
        assert found.decode_step_s.low > 0.9 * read / A100.memory_bytes_per_s


def test_a_prompt_takes_its_flops():
    found = infer(batch_size=8, prompt_len=2048)
    flops = 2 * found.shape.num_params * 8 * 2048
    assert found.prefill_s.low > flops / A100.bf16_flops_per_s
    assert found.prefill_s.mid < 4 * flops / A100.bf16_flops_per_s


@pytest.mark.parametrize("case", CASES, ids=[f"{case['config']}-{case['tensor_parallel']}" for case in CASES])
def test_published_speeds_lie_near(case):
    found = fb.estimate_inference(
        case["config"],
        hardware=case["hardware"],
        prompt_len=5,
        output_len=200,
        tensor_parallel=case["tensor_parallel"],
        precision=case["precision"],
    )
    ratio = found.output_tokens_per_s.mid / case["tokens_per_s"]
    assert 1 / case["within"] < ratio < case["within"], found.output_tokens_per_s


def test_the_cache_is_counted_by_its_heads():
    # 2 x 32 layers x 4,096 wide x 2 bytes a token; Llama 3 has 8 of 32 key and value heads.
    assert infer(prompt_len=1000, output_len=24).kv_cache_bytes == 2 * 32 * 4096 * 2 * 1024
    assert infer("llama-3-8b", prompt_len=1000, output_len=24).kv_cache_bytes == 2 * 32 * 1024 * 2 * 1024
    windowed = infer("mistral-7b", prompt_len=30_000, output_len=24)
    assert windowed.kv_cache_bytes <= 2 * 32 * 1024 * 2 * 30_024


def test_batches_make_tokens_cheaper_until_they_do_not_fit():
    alone, together = infer(price=2.0), infer(batch_size=32, price=2.0)
    assert together.output_tokens_per_s.mid > 5 * alone.output_tokens_per_s.mid
    assert together.usd_per_million_output_tokens.mid < alone.usd_per_million_output_tokens.mid / 5
    assert together.usd_per_million_input_tokens.mid < together.usd_per_million_output_tokens.mid
    most = alone.largest_batch
    assert infer(batch_size=most).memory.fits != "no"
    assert infer(batch_size=most + 1).memory.fits == "no"
    assert infer("llama-2-70b").memory.fits == "no" and infer("llama-2-70b").largest_batch == 0


def test_the_price_is_that_of_the_devices():
    found = infer(tensor_parallel=2, price=3.0)
    seconds = found.decode_step_s.mid * 128
    assert found.usd_per_million_output_tokens.mid == pytest.approx(seconds * 2 * 3.0 / 3600 / 128 * 1e6)
    assert infer(hardware="gaudi2").usd_per_million_output_tokens is None
    assert infer(hardware="gaudi2").output_tokens_per_s.mid > 0


def test_uncertainty_is_admitted():
    found = infer()
    assert any("mode" in words for words in found.extrapolating)
    assert found.decode_step_s.high / found.decode_step_s.low > 1.4
    for interval in (found.prefill_s, found.decode_step_s, found.request_s, found.output_tokens_per_s):
        assert 0 < interval.low <= interval.mid <= interval.high < float("inf")


def test_launches_of_the_host_take_longer_than_graphs():
    assert infer("gpt2", cuda_graphs=False).decode_step_s.mid > 1.5 * infer("gpt2").decode_step_s.mid


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prompt_len": 0}, "prompt_len must be an integer of at least 1"),
        ({"output_len": -1}, "output_len must be"),
        ({"batch_size": 1.5}, "batch_size must be"),
        ({"precision": "int4"}, "precision must be one of"),
        ({"config": "bert-base"}, "does not generate text"),
        ({"tensor_parallel": 3}, "tensor_parallel"),
        ({"hardware": "h1000"}, "Unknown hardware"),
        ({"price": -1.0}, "above 0"),
    ],
)
def test_wrong_arguments_are_explained(changes, expected):
    with pytest.raises(fb.InvalidInputError, match=expected):
        infer(**changes)


def test_every_batch_that_fits_has_its_speed():
    found = infer(price=2.0)
    sizes = [speed.batch_size for speed in found.by_batch]
    assert sizes[0] == 1 and sizes[-1] <= found.largest_batch < 2 * sizes[-1]
    rates = [speed.output_tokens_per_s.mid for speed in found.by_batch]
    assert rates == sorted(rates)
    assert found.by_batch[0].decode_step_s == found.decode_step_s
    assert infer("llama-2-70b").by_batch == ()
