"""Configurations of the older families: GPT-2, GPT-J, GPT-NeoX, OPT, BLOOM, Falcon, BERT, RoBERTa, T5."""

from __future__ import annotations

from ...core.errors import InvalidInputError
from .config_values import ConfigValues
from .transformer_shape import AttentionShape, BlockShape, MlpShape, TransformerShape


def _attention(
    heads: int, hidden: int, *, bias: bool, config: ConfigValues, kv_heads: int | None = None, fused: bool = False
) -> AttentionShape:
    head_dim = config.heads_of(hidden, heads)
    return AttentionShape(
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=head_dim,
        value_head_dim=head_dim,
        qkv_bias=bias,
        out_bias=bias,
        fused_inputs=fused,
    )


def read_gpt2(config: ConfigValues) -> TransformerShape:
    """Return the shape of a GPT-2 model."""
    hidden = config.size("n_embd", "hidden_size")
    positions = config.size("n_positions", "max_position_embeddings", default=1024)
    block = BlockShape(
        attention=_attention(
            config.size("n_head", "num_attention_heads"), hidden, bias=True, config=config, fused=True
        ),
        mlp=MlpShape(intermediate=config.size("n_inner", default=4 * hidden), gated=False, bias=True),
        norms=2,
        norm_params=4 * hidden,
    )
    return TransformerShape(
        family="gpt2",
        hidden=hidden,
        vocab=config.size("vocab_size"),
        embedding_width=hidden,
        blocks=(block,) * config.size("n_layer", "num_hidden_layers"),
        embedding_extra_params=positions * hidden,
        final_params=2 * hidden,
        tied=config.flag("tie_word_embeddings", True),
        rms_norm=False,
        dropout=True,
        max_positions=positions,
    )


def read_gptj(config: ConfigValues) -> TransformerShape:
    """Return the shape of a GPT-J model: one norm a layer, attention without biases, a head with one."""
    hidden = config.size("n_embd", "hidden_size")
    vocab = config.size("vocab_size")
    block = BlockShape(
        attention=_attention(config.size("n_head", "num_attention_heads"), hidden, bias=False, config=config),
        mlp=MlpShape(intermediate=config.size("n_inner", default=4 * hidden), gated=False, bias=True),
        norms=1,
        norm_params=2 * hidden,
    )
    return TransformerShape(
        family="gptj",
        hidden=hidden,
        vocab=vocab,
        embedding_width=hidden,
        blocks=(block,) * config.size("n_layer", "num_hidden_layers"),
        final_params=2 * hidden,
        tied=config.flag("tie_word_embeddings", False),
        head_extra_params=vocab,
        rms_norm=False,
    )


def read_gpt_neox(config: ConfigValues) -> TransformerShape:
    """Return the shape of a GPT-NeoX or Pythia model."""
    hidden = config.size("hidden_size")
    bias = config.flag("attention_bias", True)
    block = BlockShape(
        attention=_attention(config.size("num_attention_heads"), hidden, bias=bias, config=config, fused=True),
        mlp=MlpShape(intermediate=config.size("intermediate_size"), gated=False, bias=True),
        norms=2,
        norm_params=4 * hidden,
    )
    return TransformerShape(
        family="gpt_neox",
        hidden=hidden,
        vocab=config.size("vocab_size"),
        embedding_width=hidden,
        blocks=(block,) * config.size("num_hidden_layers"),
        final_params=2 * hidden,
        tied=config.flag("tie_word_embeddings", False),
        rms_norm=False,
    )


def read_opt(config: ConfigValues) -> TransformerShape:
    """Return the shape of an OPT model; its position table has two rows more than positions."""
    hidden = config.size("hidden_size")
    width = config.size("word_embed_proj_dim", default=hidden)
    positions = config.size("max_position_embeddings", default=2048)
    bias = config.flag("enable_bias", True)
    norm = 2 * hidden if config.flag("layer_norm_elementwise_affine", True) else 0
    block = BlockShape(
        attention=_attention(config.size("num_attention_heads"), hidden, bias=bias, config=config),
        mlp=MlpShape(intermediate=config.size("ffn_dim"), gated=False, bias=bias),
        norms=2,
        norm_params=2 * norm,
    )
    projection = hidden * width if width != hidden else 0
    final_norm = config.flag("do_layer_norm_before", True) and not config.flag("_remove_final_layer_norm", False)
    return TransformerShape(
        family="opt",
        hidden=hidden,
        vocab=config.size("vocab_size"),
        embedding_width=width,
        blocks=(block,) * config.size("num_hidden_layers"),
        embedding_extra_params=(positions + 2) * hidden + projection,
        final_params=projection + (norm if final_norm else 0),
        tied=config.flag("tie_word_embeddings", True),
        rms_norm=False,
        dropout=True,
        max_positions=positions,
    )


def read_bloom(config: ConfigValues) -> TransformerShape:
    """Return the shape of a BLOOM model: ALiBi positions, a norm after the embedding."""
    hidden = config.size("hidden_size", "n_embed")
    block = BlockShape(
        attention=_attention(
            config.size("n_head", "num_attention_heads"), hidden, bias=True, config=config, fused=True
        ),
        mlp=MlpShape(intermediate=4 * hidden, gated=False, bias=True),
        norms=2,
        norm_params=4 * hidden,
    )
    return TransformerShape(
        family="bloom",
        hidden=hidden,
        vocab=config.size("vocab_size"),
        embedding_width=hidden,
        blocks=(block,) * config.size("n_layer", "num_hidden_layers"),
        embedding_extra_params=2 * hidden,
        final_params=2 * hidden,
        tied=config.flag("tie_word_embeddings", True),
        rms_norm=False,
    )


def read_falcon(config: ConfigValues) -> TransformerShape:
    """Return the shape of a Falcon model, of the 7B, 40B and RW architectures."""
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture", False)
    if new:
        kv_heads = config.size("num_kv_heads", "n_head_kv", default=heads)
    else:
        kv_heads = 1 if config.flag("multi_query", True) else heads
    bias = config.flag("bias", False)
    norms_in_parallel = config.count("num_ln_in_parallel_attn", default=2 if new else 1)
    norms = 2 if (new and norms_in_parallel == 2) or not config.flag("parallel_attn", True) else 1
    block = BlockShape(
        attention=_attention(heads, hidden, bias=bias, config=config, kv_heads=kv_heads, fused=True),
        mlp=MlpShape(intermediate=config.size("ffn_hidden_size", default=4 * hidden), gated=False, bias=bias),
        norms=norms,
        norm_params=2 * norms * hidden,
    )
    return TransformerShape(
        family="falcon",
        hidden=hidden,
        vocab=config.size("vocab_size"),
        embedding_width=hidden,
        blocks=(block,) * config.size("num_hidden_layers", "n_layer"),
        final_params=2 * hidden,
        tied=config.flag("tie_word_embeddings", True),
        rms_norm=False,
    )


def read_bert(config: ConfigValues, family: str) -> TransformerShape:
    """Return the shape of a BERT or RoBERTa model with the head that ``architectures`` names.

    Heads: masked language modeling (the default), BERT's pre-training heads, or none but the pooler.
    """
    hidden = config.size("hidden_size")
    vocab = config.size("vocab_size")
    positions = config.size("max_position_embeddings", default=512)
    types = config.size("type_vocab_size", default=2)
    block = BlockShape(
        attention=_attention(config.size("num_attention_heads"), hidden, bias=True, config=config),
        mlp=MlpShape(intermediate=config.size("intermediate_size"), gated=False, bias=True),
        norms=2,
        norm_params=4 * hidden,
    )
    architectures = config.values.get("architectures") or ["ForMaskedLM"]
    head = str(architectures[0])
    pooler = hidden * hidden + hidden
    transform = hidden * hidden + hidden + 2 * hidden + vocab
    known = {"ForMaskedLM": (True, 0), "ForPreTraining": (True, pooler + 2 * hidden + 2), "Model": (False, pooler)}
    ending = next((ending for ending in known if head.endswith(ending)), None)
    if ending is None:
        raise InvalidInputError(
            f"{config.name}: the head of {head!r} is not modeled. Set architectures to ['BertForMaskedLM'], "
            "['BertForPreTraining'] or ['BertModel']."
        )
    has_head, final = known[ending]
    return TransformerShape(
        family=family,
        hidden=hidden,
        vocab=vocab,
        embedding_width=hidden,
        blocks=(block,) * config.size("num_hidden_layers"),
        embedding_extra_params=(positions + types + 2) * hidden,
        final_params=final,
        has_head=has_head,
        tied=config.flag("tie_word_embeddings", True),
        head_extra_params=transform,
        causal=False,
        rms_norm=False,
        dropout=True,
        max_positions=positions,
    )


def read_t5(config: ConfigValues, family: str) -> TransformerShape:
    """Return the shape of a T5 or mT5 model. The first layer of each stack holds the position biases."""
    hidden = config.size("d_model", "hidden_size")
    heads = config.size("num_heads", "num_attention_heads")
    head_dim = config.size("d_kv")
    gated = config.text("feed_forward_proj", "relu").startswith("gated")
    buckets = config.size("relative_attention_num_buckets", default=32)

    def attention(extra: int = 0) -> AttentionShape:
        return AttentionShape(
            heads=heads, kv_heads=heads, head_dim=head_dim, value_head_dim=head_dim, extra_params=extra
        )

    mlp = MlpShape(intermediate=config.size("d_ff"), gated=gated)

    def stack(layers: int, cross: bool) -> tuple[BlockShape, ...]:
        norms = 3 if cross else 2
        return tuple(
            BlockShape(
                attention=attention(buckets * heads if layer == 0 else 0),
                mlp=mlp,
                norms=norms,
                norm_params=norms * hidden,
                cross_attention=attention() if cross else None,
            )
            for layer in range(layers)
        )

    layers = config.size("num_layers", "num_hidden_layers")
    return TransformerShape(
        family=family,
        hidden=hidden,
        vocab=config.size("vocab_size"),
        embedding_width=hidden,
        encoder_blocks=stack(layers, cross=False),
        blocks=stack(config.size("num_decoder_layers", default=layers), cross=True),
        final_params=2 * hidden,
        # transformers 5 ties them whatever the configuration says; version 4 obeyed tie_word_embeddings.
        tied=True,
        dropout=True,
    )
