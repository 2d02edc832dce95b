"""Memory from formulas agrees with memory from tracing the real model's step as a GPU would run it."""

import pytest

import fastbudget as fb
from fastbudget.cost.trace.tracing import trace_step
from fastbudget.cost.transformer.transformer_config import _presets

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CASES = [
    ("llama-3.2-1b", 4, 1024, "bf16-mixed", "none", {"num_hidden_layers": 6}),
    ("llama-3.2-1b", 4, 1024, "bf16", "none", {"num_hidden_layers": 6}),
    ("llama-3.2-1b", 4, 1024, "fp32", "none", {"num_hidden_layers": 3}),
    ("llama-3.2-1b", 4, 1024, "bf16-mixed", "full", {"num_hidden_layers": 6}),
    ("gpt2", 8, 1024, "bf16-mixed", "none", {"n_layer": 6}),
    ("gpt2", 8, 1024, "bf16", "none", {"n_layer": 6}),
    ("qwen3-0.6b", 4, 1024, "bf16-mixed", "none", {"num_hidden_layers": 6}),
    ("qwen2.5-0.5b", 4, 1024, "bf16-mixed", "none", {"num_hidden_layers": 6}),
    ("qwen3-30b-a3b", 8, 2048, "bf16", "none", {"num_hidden_layers": 2}),
    ("pythia-410m", 4, 1024, "bf16-mixed", "none", {"num_hidden_layers": 6}),
    ("opt-125m", 8, 1024, "bf16-mixed", "none", {"num_hidden_layers": 6}),
    ("bloom-560m", 2, 1024, "bf16-mixed", "none", {"n_layer": 4}),
    ("bert-large", 8, 512, "bf16-mixed", "none", {"num_hidden_layers": 6}),
    ("gemma-3-1b", 2, 1024, "bf16-mixed", "none", {"num_hidden_layers": 6}),
    ("t5-base", 8, 512, "bf16-mixed", "none", {"num_layers": 4}),
]


def _model(config):
    values = {key: value for key, value in config.items() if key != "model_type"}
    values |= {"use_cache": False, "pad_token_id": 0, "decoder_start_token_id": 0}
    own = transformers.AutoConfig.for_model(config["model_type"], **values)
    kinds = {"bert": transformers.AutoModelForMaskedLM, "t5": transformers.AutoModelForSeq2SeqLM}
    return kinds.get(config["model_type"], transformers.AutoModelForCausalLM).from_config(own)


def _traced_bytes(factory, batch, length, precision, recompute):
    ids = torch.zeros(batch, length, dtype=torch.long)
    trace = trace_step(
        factory, {"input_ids": ids, "labels": ids}, optimizer="adamw", precision=precision, kernels="cuda",
        recompute=recompute,
    )  # fmt: skip
    return trace.log.peak_bytes


@pytest.mark.parametrize(("name", "batch", "length", "precision", "recompute", "changes"), CASES)
def test_allocated_bytes_agree_with_the_trace(name, batch, length, precision, recompute, changes):
    config = {**_presets()[name], **changes}
    traced = _traced_bytes(lambda: _model(config), batch, length, precision, recompute)
    analytic = fb.estimate_transformer(
        config, seq_len=length, global_batch_size=batch, micro_batch_size=batch, precision=precision,
        recompute=recompute, hardware="a100-80gb",
    ).memory.allocated_bytes  # fmt: skip
    assert analytic == pytest.approx(traced, rel=0.03)


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
@pytest.mark.parametrize("targets", [("q", "v"), ("q", "k", "v", "o", "gate", "up", "down")])
def test_adapters_agree_with_the_trace(precision, targets):
    peft = pytest.importorskip("peft")
    config = {**_presets()["llama-3.2-1b"], "num_hidden_layers": 6}

    def factory():
        adapted = peft.LoraConfig(r=16, target_modules=[f"{target}_proj" for target in targets])
        return peft.get_peft_model(_model(config).to(torch.bfloat16), adapted)

    # Without autocast the weights stay as made, which the tracer calls fp32.
    traced = _traced_bytes(factory, 4, 1024, {"bf16": "fp32"}.get(precision, precision), "none")
    analytic = fb.estimate_transformer(
        config, seq_len=1024, global_batch_size=4, micro_batch_size=4, precision=precision, lora_rank=16,
        lora_targets=targets, hardware="a100-80gb",
    ).memory.allocated_bytes  # fmt: skip
    assert analytic == pytest.approx(traced, rel=0.03)
