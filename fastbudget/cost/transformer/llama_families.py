"""Configurations of decoder families that descend from Llama: RMSNorm or LayerNorm, rotary positions, gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...core.errors import InvalidInputError
from .config_values import ConfigValues
from .transformer_shape import AttentionShape, BlockShape, MlpShape, TransformerShape


@dataclass(frozen=True, kw_only=True)
class _Habits:
    """How a family differs from Llama; defaults are Llama's. Read off ``transformers`` models, version 5.

    Attributes:
        tied: the head is the embedding unless the configuration says otherwise.
        qkv_bias: key of the flag for biases of queries, keys and values, and its default.
        out_bias: the output projection follows that flag too.
        mlp_bias: the same for the MLP.
        gated: the MLP is gated.
        norms: norms per layer.
        norm_width: parameters of a norm per unit of width: 1 with a weight, 2 with a bias too, 0 for none.
        qk_norm: what the norms of queries and keys cover: ``""`` nothing, ``"head"`` one head shared by
            all, ``"width"`` all heads at once.
        head_dim: default size of a head; None: by dividing.
        head_bias: the head has a bias.
    """

    tied: bool = False
    qkv_bias: tuple[str, bool] = ("attention_bias", False)
    out_bias: bool = True
    mlp_bias: tuple[str, bool] = ("mlp_bias", False)
    gated: bool = True
    norms: int = 2
    norm_width: int = 1
    qk_norm: str = ""
    head_dim: int | None = None
    head_bias: bool = False


_NO_BIAS = ("", False)
_HABITS = {
    "llama": _Habits(),
    "mistral": _Habits(qkv_bias=_NO_BIAS, mlp_bias=_NO_BIAS),
    "mixtral": _Habits(qkv_bias=_NO_BIAS, mlp_bias=_NO_BIAS),
    "granite": _Habits(),
    "smollm3": _Habits(tied=True),
    "qwen2": _Habits(qkv_bias=("", True), out_bias=False, mlp_bias=_NO_BIAS),
    "qwen2_moe": _Habits(qkv_bias=("qkv_bias", True), out_bias=False, mlp_bias=_NO_BIAS),
    "qwen3": _Habits(mlp_bias=_NO_BIAS, qk_norm="head", head_dim=128),
    "qwen3_moe": _Habits(mlp_bias=_NO_BIAS, qk_norm="head"),
    "gemma": _Habits(tied=True, mlp_bias=_NO_BIAS, head_dim=256),
    "gemma2": _Habits(tied=True, mlp_bias=_NO_BIAS, norms=4, head_dim=256),
    "gemma3_text": _Habits(tied=True, mlp_bias=_NO_BIAS, norms=4, qk_norm="head", head_dim=256),
    "phi3": _Habits(qkv_bias=_NO_BIAS, mlp_bias=_NO_BIAS),
    "phi": _Habits(qkv_bias=("", True), mlp_bias=("", True), gated=False, norms=1, norm_width=2, head_bias=True),
    "olmo": _Habits(mlp_bias=_NO_BIAS, norm_width=0),
    "olmo2": _Habits(mlp_bias=_NO_BIAS, qk_norm="width"),
    "stablelm": _Habits(qkv_bias=("use_qkv_bias", False), out_bias=False, mlp_bias=_NO_BIAS, norms=2, norm_width=2),
    "starcoder2": _Habits(
        tied=True, qkv_bias=("use_bias", True), mlp_bias=("use_bias", True), gated=False, norm_width=2
    ),
    "cohere": _Habits(tied=True, mlp_bias=_NO_BIAS, norms=1),
    "cohere2": _Habits(tied=True, mlp_bias=_NO_BIAS, norms=1),
    "gpt_oss": _Habits(qkv_bias=("attention_bias", True), head_dim=64),
    # The first Qwen, whose code ships with its weights: one fused biased projection, the two inner widths in one key.
    "qwen": _Habits(qkv_bias=("", True), out_bias=False, mlp_bias=_NO_BIAS),
}


def read_llama_family(config: ConfigValues, family: str) -> TransformerShape:
    """Return the shape of a decoder that descends from Llama."""
    habits = _HABITS[family]
    hidden = config.size("hidden_size")
    layers = config.size("num_hidden_layers")
    attention = _attention(config, family, habits, hidden)
    parallel = family == "stablelm" and config.flag("use_parallel_residual", False)
    norms = 1 if parallel else habits.norms
    norm = habits.norm_width * hidden
    mlp_of = _mixture(config, family, hidden) or _dense(config, family, habits)
    blocks = tuple(
        BlockShape(
            attention=_windowed(config, family, attention, layer),
            mlp=mlp_of(layer),
            norms=norms,
            norm_params=norms * norm,
        )
        for layer in range(layers)
    )
    vocab = config.size("vocab_size")
    return TransformerShape(
        family=family,
        hidden=hidden,
        vocab=vocab,
        embedding_width=hidden,
        blocks=blocks,
        final_params=norm,
        tied=config.flag("tie_word_embeddings", habits.tied),
        head_extra_params=vocab if habits.head_bias else 0,
        rms_norm=habits.norm_width == 1 and not family.startswith("cohere"),
    )


def _attention(config: ConfigValues, family: str, habits: _Habits, hidden: int) -> AttentionShape:
    heads = config.size("num_attention_heads")
    head_dim = (
        habits.head_dim
        if habits.head_dim is not None and not config.has("head_dim")
        else config.heads_of(hidden, heads)
    )
    kv_heads = config.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise InvalidInputError(
            f"{config.name}: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})."
        )
    key, default = habits.qkv_bias
    bias = config.flag(key, default) if key else default
    extra = {
        "": 0,
        "head": 2 * head_dim,
        "width": (heads + kv_heads) * head_dim,
    }[habits.qk_norm]
    if family == "cohere" and config.flag("use_qk_norm", False):
        extra = (heads + kv_heads) * head_dim
    if (family == "stablelm" and config.flag("qk_layernorm", False)) or (
        family == "phi" and config.flag("qk_layernorm", False)
    ):
        extra = (heads + kv_heads) * head_dim if family == "stablelm" else 4 * head_dim
    if family == "gpt_oss":
        extra = heads  # attention sinks
    return AttentionShape(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=head_dim,
        qkv_bias=bias,
        out_bias=bias and habits.out_bias,
        extra_params=extra,
        normalizes_qk=bool(extra) and family != "gpt_oss",
        fused_inputs=family in ("phi3", "qwen"),
    )


def _windowed(config: ConfigValues, family: str, attention: AttentionShape, layer: int) -> AttentionShape:
    window = config.count("sliding_window", default=0)
    types = config.values.get("layer_types")
    if types:
        sliding = layer < len(types) and types[layer] == "sliding_attention"
    else:
        sliding = {
            "mistral": True,
            "mixtral": True,
            "phi3": True,
            "starcoder2": True,
            "gemma2": layer % 2 == 0,
            "gpt_oss": layer % 2 == 0,
            "gemma3_text": (layer + 1) % 6 != 0,
            "cohere2": (layer + 1) % 4 != 0,
        }.get(family, False)
    if not window or not sliding:
        return attention

    return replace(attention, window=window)


def _dense(config: ConfigValues, family: str, habits: _Habits) -> Callable[[int], MlpShape]:
    intermediate = config.size("intermediate_size")
    if family == "qwen":
        intermediate //= 2
    key, default = habits.mlp_bias
    bias = config.flag(key, default) if key else default
    mlp = MlpShape(intermediate=intermediate, gated=habits.gated, bias=bias, fused_inputs=family == "phi3")
    return lambda layer: mlp


def _mixture(config: ConfigValues, family: str, hidden: int) -> Callable[[int], MlpShape] | None:
    if family in ("mixtral", "gpt_oss"):
        experts = config.size("num_local_experts")
        biased = family == "gpt_oss"
        routed = MlpShape(
            intermediate=config.size("intermediate_size"),
            gated=True,
            bias=biased,
            experts=experts,
            experts_per_token=config.size("num_experts_per_tok"),
            router_params=experts * (hidden + biased),
        )
        return lambda layer: routed
    if family in ("qwen2_moe", "qwen3_moe"):
        experts = config.count("num_experts", "num_local_experts")
        shared = config.count("shared_expert_intermediate_size", default=5632) if family == "qwen2_moe" else 0
        routed = MlpShape(
            intermediate=config.size("moe_intermediate_size"),
            gated=True,
            experts=experts,
            experts_per_token=config.size("num_experts_per_tok"),
            shared_intermediate=shared,
            router_params=experts * hidden + (hidden if shared else 0),
        )
        dense_layers = config.integers("mlp_only_layers") or ()
        every = config.size("decoder_sparse_step", default=1)

        def mlp_of(layer: int) -> MlpShape:
            if experts and layer not in dense_layers and (layer + 1) % every == 0:
                return routed
            return MlpShape(intermediate=config.size("intermediate_size"), gated=True)

        return mlp_of
    return None


LLAMA_FAMILIES = tuple(_HABITS)
