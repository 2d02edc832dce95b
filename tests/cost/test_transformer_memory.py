"""Memory of transformers from their configuration: published cases, arithmetic, and how it responds to layouts."""

import json
from pathlib import Path

import pytest

from fastbudget import InvalidInputError, estimate_transformer

CASES = json.loads((Path(__file__).parent / "cases" / "published_memory_threads.json").read_text())
GB = 1e9


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_published_case(case):
    memory = estimate_transformer(case["config"], **case["arguments"]).memory
    for key, value in (
        ("device_gb", memory.device_bytes),
        ("reserved_gb", memory.reserved_bytes),
        ("logits_gb", memory.by_category["logits"]),
    ):
        if key in case:
            low, high = case[key]
            assert low <= value / GB <= high
    if "fits" in case:
        assert memory.fits in case["fits"]


def small(**changes):
    arguments = {"seq_len": 2048, "global_batch_size": 16, "micro_batch_size": 2, "hardware": "a100-80gb", **changes}
    return estimate_transformer("llama-3.2-1b", **arguments)


def test_states_are_what_arithmetic_says():
    memory = small(precision="fp32", micro_batch_size=1).memory
    params = small().num_params
    assert memory.by_category["parameter"] == pytest.approx(4 * params, rel=1e-4)
    assert memory.by_category["optimizer_state"] == pytest.approx(8 * params, rel=1e-4)


def test_activations_are_those_of_korthikanti_et_al():
    # Section 4, equation 1: a layer saves s·b·h·(34 + 5·a·s/h) bytes with 16-bit activations and eager attention.
    from fastbudget.cost.transformer.layer_activations import ActivationModel
    from fastbudget.cost.transformer.training_layout import TrainingLayout
    from fastbudget.cost.transformer.transformer_config import read_transformer

    shape = read_transformer("gpt3-175b")
    for tensor in (1, 8):
        layout = TrainingLayout(
            seq_len=2048, global_batch_size=2, micro_batch_size=2, num_devices=tensor, tensor_parallel=tensor,
            framework="megatron", attention="eager", sequence_parallel=False,
        )  # fmt: skip
        layer = ActivationModel(shape, layout, layout.micro_batch_tokens).layer(shape.blocks[0])
        s, b, h, a = 2048, 2, 12288, 96
        # Equation 2: without sequence parallelism only part divides by t.
        assert sum(layer.saved) == pytest.approx(s * b * h * (10 + 24 / tensor + 5 * a * s / (h * tensor)), rel=1e-6)


def test_the_four_numbers_are_ordered():
    memory = small().memory
    assert memory.allocated_bytes <= memory.active_bytes <= memory.reserved_bytes < memory.device_bytes
    assert memory.analytic
    assert sum(memory.by_category.values()) == pytest.approx(memory.allocated_bytes, rel=1e-9)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"recompute": "full"}, {"recompute": "selective"}),
        ({"recompute": "selective"}, {"recompute": "none"}),
        ({"micro_batch_size": 1}, {"micro_batch_size": 2}),
        ({"loss": "chunked"}, {"loss": "eager"}),
        ({"loss": "eager", "keeps_outputs": True}, {"loss": "shifted", "keeps_outputs": True}),
        ({"loss": "fused"}, {"loss": "eager"}),
        ({}, {"keeps_outputs": True}),
        ({"attention": "flash"}, {"attention": "eager"}),
        ({"compiled": True}, {"compiled": False}),
        ({"num_devices": 8, "sharding": "zero3"}, {"num_devices": 8, "sharding": "zero1"}),
        ({"num_devices": 8, "sharding": "zero1"}, {"num_devices": 8, "sharding": "none"}),
        ({"num_devices": 8, "sharding": "zero3", "offload": "all"}, {"num_devices": 8, "sharding": "zero3"}),
        ({"offload": "optimizer"}, {"offload": "none"}),
        ({"lora_rank": 8, "quantized_base": True}, {"lora_rank": 8}),
        ({"lora_rank": 8}, {}),
        ({"lora_rank": 8}, {"lora_rank": 8, "trains_embeddings": True}),
        ({"optimizer": "adamw-8bit"}, {"optimizer": "adamw"}),
        ({"optimizer": "lion"}, {"optimizer": "adamw"}),
        ({"optimizer": "adafactor"}, {"optimizer": "lion"}),
        ({"num_devices": 4, "tensor_parallel": 4}, {"num_devices": 4}),
        ({"num_devices": 4, "context_parallel": 4}, {"num_devices": 4}),
        ({"seq_len": 256, "optimizer_kernels": "for-loop"}, {"seq_len": 256}),
        ({"seq_len": 256}, {"seq_len": 256, "optimizer_kernels": "foreach-2.0"}),
        ({"mode": "infer"}, {"mode": "train"}),
    ],
)
def test_what_saves_memory_saves_memory(less, more):
    # Allocated, for the allocator may hold on to as much for both.
    assert small(**less).memory.allocated_bytes < small(**more).memory.allocated_bytes


@pytest.mark.parametrize("framework", ["pytorch", "deepspeed", "megatron"])
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
def test_every_combination_gives_a_number(framework, sharding, precision):
    estimate = small(framework=framework, sharding=sharding, precision=precision, num_devices=8)
    assert estimate.memory.allocated_bytes > 2 * estimate.num_params / 8


def test_pipeline_ranks_differ():
    memory = estimate_transformer(
        "llama-3-70b", seq_len=4096, global_batch_size=64, num_devices=32, tensor_parallel=4, pipeline_parallel=8,
        hardware="h100", framework="megatron", sharding="zero1", recompute="full",
    ).memory  # fmt: skip
    assert len(memory.per_stage) == 8
    assert sum(stage.layers for stage in memory.per_stage) == 80
    activations = [stage.by_category["activation"] for stage in memory.per_stage]
    assert activations[:7] == sorted(activations[:7], reverse=True)  # fewer micro-batches in flight
    assert memory.per_stage[-1].by_category["logits"] > 0 == memory.per_stage[3].by_category["logits"]
    assert memory.per_stage[0].by_category["parameter"] > memory.per_stage[3].by_category["parameter"]
    assert memory.device_bytes == max(stage.device_bytes for stage in memory.per_stage)


def test_experts_divide_over_expert_parallel_ranks():
    def parameters(expert_parallel):
        return estimate_transformer(
            "mixtral-8x7b", seq_len=2048, global_batch_size=8, num_devices=8, expert_parallel=expert_parallel,
            hardware="h200", framework="megatron", sharding="zero1",
        ).memory.by_category["parameter"]  # fmt: skip

    dense = 2 * (46_702_792_704 - 32 * 8 * 3 * 4096 * 14336)
    assert parameters(8) == pytest.approx(dense + (parameters(1) - dense) / 8, rel=1e-3)


def test_a_kv_cache_is_counted():
    def cache(config, **changes):
        arguments = {"mode": "decode", "seq_len": 8192, "global_batch_size": 4, "micro_batch_size": 4, **changes}
        return estimate_transformer(config, hardware="h200", **arguments).memory.by_category["buffer"]

    per_token = 2 * 32 * 2 * 8 * 128  # bytes, layers, keys and values, heads, size
    assert cache("llama-3-8b") == pytest.approx(4 * 8192 * per_token, rel=0.01)
    # A window of 128 on every second layer, and latent attention, cache less.
    assert cache("gpt-oss-20b") < 0.6 * 4 * 8192 * 2 * 24 * 2 * 8 * 64
    assert cache("deepseek-v2-lite", precision="bf16") == pytest.approx(4 * 8192 * 2 * 27 * 576, rel=0.04)


def test_the_largest_micro_batch_fits_and_the_next_does_not():
    largest = small().memory.largest_micro_batch
    assert largest > 1
    capacity = small().memory.capacity_bytes

    def need(size):
        return small(micro_batch_size=size, global_batch_size=8 * size).memory.device_bytes

    assert need(largest) <= capacity < need(largest + 1)


def test_flops_of_a_dense_model():
    # 6·N·D with the embedding's lookup not counted, and causal attention: 6·layers·hidden·length per token.
    estimate = estimate_transformer("llama-7b", seq_len=2048, global_batch_size=4, tokens=10**12, hardware="a100")
    products = estimate.num_params - 32000 * 4096
    per_token = 6 * products + 6 * 32 * 4096 * 2048
    assert estimate.step_flops == pytest.approx(4 * 2048 * per_token, rel=1e-3)
    assert estimate.total_flops == pytest.approx(10**12 * per_token, rel=1e-3)


def test_flops_count_active_experts():
    estimate = estimate_transformer("mixtral-8x7b", seq_len=128, global_batch_size=1, hardware="h100")
    assert estimate.num_active_params == 12_879_925_248
    assert estimate.step_flops < 6.2 * 128 * estimate.num_active_params


BAD = [
    ({"config": "lama-7b"}, "Did you mean 'llama-7b'"),
    ({"config": {"model_type": "llamma"}}, "Did you mean 'llama'.*Known"),
    ({"config": {"hidden_size": 8}}, "model_type"),
    ({"config": {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}}, "text_config"),
    ({"config": {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "vocab_size": 10}}, "'n_layer' is missing"),
    (
        {"config": {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 0, "vocab_size": 10}},
        "n_layer must be at",
    ),
    ({"config": {"model_type": "gpt2", "n_embd": 65, "n_head": 4, "n_layer": 1, "vocab_size": 10}}, "don't divide"),
    ({"config": {"model_type": "gpt2", "n_embd": 2**40, "n_head": 4, "n_layer": 4, "vocab_size": 10}}, "int64"),
    ({"config": {"model_type": "gpt2", "n_embd": 2**64, "n_head": 4, "n_layer": 4, "vocab_size": 10}}, "2\\*\\*63"),
    ({"config": {"model_type": "gpt2", "n_embd": "64", "n_head": 4, "n_layer": 4, "vocab_size": 10}}, "integer"),
    ({"hardware": "h1000"}, "Unknown hardware 'h1000'"),
    ({"hardware": "rtx-4090ti"}, "Did you mean 'rtx-4090'"),
    ({"tokens": 0}, "tokens must be"),
    ({"seq_len": 0}, "seq_len must be"),
    ({"seq_len": 2**63}, "seq_len must be"),
    ({"micro_batch_size": True}, "micro_batch_size must be"),
    ({"num_devices": 3, "tensor_parallel": 3, "global_batch_size": 1}, "must divide the 32 attention heads"),
    ({"num_devices": 64, "pipeline_parallel": 64, "global_batch_size": 64}, "must not exceed the 32 layers"),
    ({"num_devices": 6, "tensor_parallel": 4}, "must be a multiple of tensor_parallel"),
    ({"num_devices": 4, "global_batch_size": 6}, "global_batch_size \\(6\\) must be a multiple"),
    ({"num_devices": 2, "expert_parallel": 2, "global_batch_size": 2}, "no experts"),
    ({"seq_len": 1023, "num_devices": 2, "context_parallel": 2}, "multiple of context_parallel"),
    ({"sharding": "zero-3"}, "Did you mean 'zero3'"),
    ({"precision": "bf16-mixd"}, "Did you mean 'bf16-mixed'"),
    ({"optimizer": "adam"}, "Did you mean 'adamw'"),
    ({"recompute": "ful"}, "Did you mean 'full'"),
    ({"quantized_base": True}, "needs lora_rank"),
    ({"config": "gpt2", "seq_len": 2048}, "1024 positions"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_mistakes_are_named(changes, message):
    arguments = {"config": "llama-7b", "seq_len": 1024, "global_batch_size": 8, "hardware": "a100", **changes}
    with pytest.raises(InvalidInputError, match=message):
        estimate_transformer(**arguments)


def test_configuration_files(tmp_path):
    config = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 100, "n_positions": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for given in (config, tmp_path, str(tmp_path / "config.json")):
        assert estimate_transformer(given, seq_len=16, global_batch_size=1, hardware="t4").num_params == 107_520
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InvalidInputError, match="is not JSON"):
        estimate_transformer(tmp_path / "bad.json", seq_len=16, global_batch_size=1, hardware="t4")
    with pytest.raises(InvalidInputError, match="neither a configuration file nor a preset"):
        estimate_transformer(tmp_path / "none.json", seq_len=16, global_batch_size=1, hardware="t4")
