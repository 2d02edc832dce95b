"""Configurations of DeepSeek-V2 and -V3: multi-head latent attention and many small experts."""

from __future__ import annotations

from .config_values import ConfigValues
from .transformer_shape import AttentionShape, BlockShape, MlpShape, TransformerShape

DEEPSEEK_FAMILIES = ("deepseek_v2", "deepseek_v3")


def read_deepseek(config: ConfigValues, family: str) -> TransformerShape:
    """Return the shape of a DeepSeek-V2 or -V3 model, without its multi-token prediction layer.

    Source: arXiv:2405.04434 and 2412.19437, sizes as in ``transformers``.
    """
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    rope = config.size("qk_rope_head_dim", default=64)
    bias = config.flag("attention_bias", False)
    attention = AttentionShape(
        heads=heads,
        kv_heads=heads,
        head_dim=config.size("qk_nope_head_dim", default=128) + rope,
        value_head_dim=config.size("v_head_dim", default=128),
        out_bias=bias,
        latent_bias=bias,
        # Null (or 0, for TOML has no null) says that queries are not compressed; an absent key that they are.
        query_rank=config.count("q_lora_rank", default=0 if "q_lora_rank" in config.values else 1536) or None,
        kv_rank=config.size("kv_lora_rank", default=512),
        rope_head_dim=rope,
        normalizes_qk=True,
    )
    experts = config.size("n_routed_experts")
    expert_width = config.size("moe_intermediate_size")
    routed = MlpShape(
        intermediate=expert_width,
        gated=True,
        experts=experts,
        experts_per_token=config.size("num_experts_per_tok"),
        shared_intermediate=expert_width * config.count("n_shared_experts", default=0),
        router_params=experts * hidden,
    )
    dense = MlpShape(
        intermediate=config.size("intermediate_size"),
        gated=True,
        bias=family == "deepseek_v2" and config.flag("mlp_bias", False),
    )
    first_dense = config.count("first_k_dense_replace", default=3 if family == "deepseek_v3" else 0)
    return TransformerShape(
        family=family,
        hidden=hidden,
        vocab=config.size("vocab_size"),
        embedding_width=hidden,
        blocks=tuple(
            BlockShape(
                attention=attention,
                mlp=dense if layer < first_dense else routed,
                norms=2,
                norm_params=2 * hidden,
            )
            for layer in range(config.size("num_hidden_layers"))
        ),
        final_params=hidden,
        tied=config.flag("tie_word_embeddings", False),
    )
