"""Parameter counts equal the model's own, for every family, at random small sizes and as published."""

import random
import re

import pytest

from fastbudget.cost.transformer.transformer_config import _presets, known_presets, read_transformer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def _own_count(config):
    values = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    values.setdefault("pad_token_id", 0)
    if values.get("q_lora_rank") == 0:
        values["q_lora_rank"] = None
    own = transformers.AutoConfig.for_model(config["model_type"], **values)
    if config["model_type"] in ("bert", "roberta"):
        heads = config.get("architectures", ["BertForMaskedLM"])[0]
        kind = (
            transformers.AutoModelForPreTraining
            if heads.endswith("PreTraining")
            else transformers.AutoModel
            if heads.endswith("Model")
            else transformers.AutoModelForMaskedLM
        )
    elif config["model_type"] in ("t5", "mt5"):
        kind = transformers.AutoModelForSeq2SeqLM
    else:
        kind = transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(own).num_parameters()


# One model of each family at full size; the big ones take seconds to build even without memory.
PUBLISHED = (
    "gpt2-xl", "gpt-j-6b", "gpt-neox-20b", "opt-6.7b", "bloom-7b1", "falcon-7b", "falcon-40b", "llama-7b",
    "llama-3-8b", "llama-3.2-3b", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b",
    "gemma-7b", "gemma-2-9b", "gemma-3-1b", "phi-2", "phi-3-mini", "bert-large", "roberta-large", "t5-3b",
    "t0-3b", "mt0-xxl", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "olmo-7b", "olmo-2-7b",
    "stablelm-2-1.6b", "starcoder2-15b", "command-r",
)  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name):
    assert read_transformer(name).num_params == _own_count(_presets()[name])


def _size_in(name):
    """Match "-7b", "-1b7", "-0.6b", "-30b-a3b": the first size in the name; "8x7b" is none."""
    return None if "x" in name else re.search(r"-(\d+(?:\.\d+)?)([mb])(\d?)(?:-|$)", name)


@pytest.mark.parametrize("name", sorted(name for name in set(known_presets()) - set(PUBLISHED) if _size_in(name)))
def test_every_preset_with_a_size_in_its_name_is_near_it(name):
    found = _size_in(name)
    size = float(found[1] + (f".{found[3]}" if found[3] else "")) * {"m": 1e6, "b": 1e9}[found[2]]
    assert read_transformer(name).num_params == pytest.approx(size, rel=0.31)


def _sizes(draw, **more):
    heads = draw.choice((2, 4, 6))
    head_dim = draw.choice((8, 16))
    return {
        "vocab_size": draw.randrange(64, 300),
        "hidden_size": heads * head_dim,
        "num_hidden_layers": draw.randrange(1, 4),
        "num_attention_heads": heads,
        "intermediate_size": draw.randrange(10, 100),
        "tie_word_embeddings": draw.random() < 0.5,
        **more,
    }


def _kv(draw, config):
    config["num_key_value_heads"] = draw.choice((1, 2, config["num_attention_heads"]))
    return config


def _bert(draw):
    heads = draw.choice((["BertForMaskedLM"], ["BertForPreTraining"], ["BertModel"]))
    return {**_sizes(draw), "tie_word_embeddings": True, "type_vocab_size": 3, "architectures": heads}


def _classic(draw, **more):
    sizes = _sizes(draw)
    return {
        "vocab_size": sizes["vocab_size"],
        "n_embd": sizes["hidden_size"],
        "n_layer": sizes["num_hidden_layers"],
        "n_head": sizes["num_attention_heads"],
        "n_positions": draw.randrange(8, 64),
        "tie_word_embeddings": sizes["tie_word_embeddings"],
        **more,
    }


def _deepseek(draw, **more):
    sizes = _sizes(draw)
    return {
        **sizes,
        "num_key_value_heads": sizes["num_attention_heads"],
        "q_lora_rank": draw.choice((None, 12)),
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": draw.choice((8, 24)),
        "n_routed_experts": 8,
        "n_shared_experts": draw.choice((1, 2)),
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "first_k_dense_replace": draw.choice((0, 1)),
        "attention_bias": draw.random() < 0.5,
        "n_group": 2,
        "topk_group": 1,
        **more,
    }


RANDOM = {
    "gpt2": _classic,
    "gptj": lambda draw: _classic(draw, rotary_dim=4, n_inner=draw.choice((None, 50))),
    "gpt_neox": lambda draw: _sizes(draw, attention_bias=draw.random() < 0.5),
    "opt": lambda draw: {
        **_sizes(draw, ffn_dim=40, enable_bias=draw.random() < 0.5, max_position_embeddings=50),
        "word_embed_proj_dim": draw.choice((16, 64)),
        "do_layer_norm_before": draw.random() < 0.5,
    },
    "bloom": lambda draw: {
        "vocab_size": 99,
        "hidden_size": 32,
        "n_layer": draw.randrange(1, 4),
        "n_head": draw.choice((2, 4)),
    },
    "falcon": lambda draw: _sizes(
        draw,
        new_decoder_architecture=draw.random() < 0.5,
        multi_query=draw.random() < 0.5,
        parallel_attn=draw.random() < 0.5,
        bias=draw.random() < 0.5,
        num_kv_heads=2,
    ),
    "llama": lambda draw: _kv(draw, _sizes(draw, attention_bias=draw.random() < 0.5, mlp_bias=draw.random() < 0.5)),
    "mistral": lambda draw: _kv(draw, _sizes(draw, head_dim=draw.choice((None, 12)))),
    "mixtral": lambda draw: _kv(draw, _sizes(draw, num_local_experts=4, num_experts_per_tok=2)),
    "granite": lambda draw: _kv(draw, _sizes(draw, attention_bias=draw.random() < 0.5)),
    "smollm3": lambda draw: _kv(draw, _sizes(draw)),
    "qwen2": lambda draw: _kv(draw, _sizes(draw)),
    "qwen2_moe": lambda draw: _kv(
        draw,
        _sizes(
            draw,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            shared_expert_intermediate_size=24,
            decoder_sparse_step=draw.choice((1, 2)),
        ),
    ),
    "qwen3": lambda draw: _kv(draw, _sizes(draw, attention_bias=draw.random() < 0.5)),
    "qwen3_moe": lambda draw: _kv(
        draw, _sizes(draw, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, mlp_only_layers=[0])
    ),
    "gemma": lambda draw: _kv(draw, _sizes(draw, head_dim=draw.choice((8, 20)))),
    "gemma2": lambda draw: _kv(draw, _sizes(draw, head_dim=draw.choice((8, 20)))),
    "gemma3_text": lambda draw: _kv(draw, _sizes(draw, head_dim=draw.choice((8, 20)))),
    "phi": lambda draw: _kv(draw, {**_sizes(draw, qk_layernorm=draw.random() < 0.5), "tie_word_embeddings": False}),
    "phi3": lambda draw: _kv(draw, _sizes(draw)),
    "olmo": lambda draw: _kv(draw, _sizes(draw)),
    "olmo2": lambda draw: _kv(draw, _sizes(draw, attention_bias=draw.random() < 0.5)),
    "stablelm": lambda draw: _kv(
        draw,
        _sizes(
            draw,
            use_qkv_bias=draw.random() < 0.5,
            use_parallel_residual=draw.random() < 0.5,
            qk_layernorm=draw.random() < 0.5,
        ),
    ),
    "starcoder2": lambda draw: _kv(draw, _sizes(draw, use_bias=draw.random() < 0.5)),
    "cohere": lambda draw: _kv(draw, _sizes(draw, use_qk_norm=draw.random() < 0.5)),
    "cohere2": lambda draw: _kv(draw, _sizes(draw)),
    "gpt_oss": lambda draw: _kv(draw, _sizes(draw, num_local_experts=4, num_experts_per_tok=2, head_dim=16)),
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "bert": _bert,
    "roberta": lambda draw: {**_sizes(draw), "tie_word_embeddings": True},
    "t5": lambda draw: {
        "vocab_size": 80,
        "d_model": 24,
        "d_kv": draw.choice((8, 16)),
        "d_ff": 40,
        "num_heads": 3,
        "num_layers": draw.randrange(1, 3),
        "num_decoder_layers": draw.randrange(1, 4),
        "feed_forward_proj": draw.choice(("relu", "gated-gelu")),
        "tie_word_embeddings": draw.random() < 0.5,
    },
    "mt5": lambda draw: {
        "vocab_size": 80,
        "d_model": 24,
        "d_kv": 8,
        "d_ff": 40,
        "num_heads": 3,
        "num_layers": 2,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", RANDOM)
def test_random_sizes(family, seed):
    draw = random.Random(f"{family} {seed}")
    config = {"model_type": family, **RANDOM[family](draw)}
    if config.get("num_attention_heads") == 6 and config.get("num_key_value_heads") == 4:
        config["num_key_value_heads"] = 2
    assert read_transformer(config).num_params == _own_count(config)
