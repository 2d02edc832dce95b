"""Floating-point operations of a transformer's training step.

Conventions. A product [m, k] x [k, n] takes 2·m·n·k. Model FLOPs are what the step needs by its definition,
whatever is computed twice, and causal attention counts the half it needs: MFU is their share of the peak.
Hardware FLOPs add what the layout recomputes: HFU is theirs. Sources: Chowdhery et al. 2022 (PaLM,
arXiv:2204.02311), appendix B, for both shares; Narayanan et al. 2021 (arXiv:2104.04473), appendix, for the terms.
Figures of others that count attention over the whole square (12·layers·hidden·seq_len per token) are higher.
"""

from __future__ import annotations

from .training_layout import TrainingLayout
from .transformer_shape import AttentionShape, BlockShape, TransformerShape


def forward_flops_per_token(shape: TransformerShape, seq_len: int, *, decoding: bool = False) -> float:
    """Return a forward pass's FLOPs per token: 2 per parameter in a product, and attention's own.

    A token passes the experts that it visits; looking up an embedding takes none. In decoding a token sees all
    `seq_len` tokens of the cache.
    """
    causal = shape.causal and not decoding
    flops = sum(
        count * block_flops_per_token(block, shape, seq_len, causal=causal) for block, count in shape.block_counts
    )
    return flops + head_flops_per_token(shape)


def block_flops_per_token(block: BlockShape, shape: TransformerShape, seq_len: int, *, causal: bool) -> float:
    """Return the FLOPs of a layer's forward pass per token."""
    flops = 2.0 * block.active_params(shape.hidden)
    flops += attention_flops_per_token(block.attention, seq_len, causal=causal)
    if block.cross_attention is not None:
        flops += attention_flops_per_token(block.cross_attention, seq_len, causal=False)
    return flops


def attention_flops_per_token(attention: AttentionShape, seq_len: int, *, causal: bool) -> float:
    """Return the FLOPs of scores and weighted values: 2·(query width + output width) per token and token seen."""
    return 2.0 * (attention.query_width + attention.out_width) * tokens_seen(attention, seq_len, causal=causal)


def tokens_seen(attention: AttentionShape, seq_len: int, *, causal: bool) -> float:
    """Return how many tokens one sees on average: half the sequence under causal attention, less in a window."""
    if not causal:
        return seq_len if attention.window is None else min(seq_len, attention.window)
    window = seq_len if attention.window is None else min(seq_len, attention.window)
    # The first `window` tokens see half of it on average, those after them all of it.
    return window - window * window / (2.0 * seq_len)


def head_flops_per_token(shape: TransformerShape) -> float:
    """Return the FLOPs of the logits per token."""
    return 2.0 * shape.vocab * shape.embedding_width if shape.has_head else 0.0


def step_flops(shape: TransformerShape, layout: TrainingLayout) -> float:
    """Return the model's FLOPs of an optimizer step over all devices, recomputation not counted.

    The backward pass takes twice the forward pass: gradients of inputs and of weights. With adapters the
    frozen weights need none, which leaves about once; the adapters' own three passes are added.
    """
    forward = forward_flops_per_token(shape, layout.seq_len, decoding=layout.mode == "decode")
    if layout.mode != "train":
        passes = forward
    elif layout.trains_all:
        passes = 3.0 * forward
    else:
        passes = 2.0 * forward + 6.0 * adapter_params(shape, layout)
    return passes * step_tokens(layout)


def recomputed_flops(shape: TransformerShape, layout: TrainingLayout) -> float:
    """Return the FLOPs of a step, over all devices, that repeat a part of the forward pass.

    Full recompute repeats every layer. Selective recompute repeats attention's own under Megatron and eager
    attention (Korthikanti et al. 2022, arXiv:2205.05198), half of the matrix products elsewhere (torchtitan).
    """
    if layout.mode != "train" or layout.recompute == "none":
        return 0.0
    flops = 0.0
    for block, count in shape.block_counts:
        attention = attention_flops_per_token(block.attention, layout.seq_len, causal=shape.causal)
        whole = block_flops_per_token(block, shape, layout.seq_len, causal=shape.causal)
        if layout.recompute == "full":
            flops += count * whole
        elif recomputes_attention_only(layout):
            flops += count * attention
        else:
            flops += count * (whole - attention) / 2.0
    return flops * step_tokens(layout)


def recomputes_attention_only(layout: TrainingLayout) -> bool:
    """Whether selective recompute repeats attention rather than every second matrix product."""
    return layout.framework == "megatron" or layout.attention == "eager"


def step_tokens(layout: TrainingLayout) -> int:
    """Return the tokens of an optimizer step, or the tokens made in a step of decoding."""
    return layout.global_batch_size * (1 if layout.mode == "decode" else layout.seq_len)


def adapter_params(shape: TransformerShape, layout: TrainingLayout) -> int:
    """Return the parameters of all adapters that a token passes through."""
    if layout.lora_rank is None:
        return 0
    return sum(count * _adapter_widths(block, shape.hidden, layout) for block, count in shape.block_counts) * (
        layout.lora_rank
    )


def _adapter_widths(block: BlockShape, hidden: int, layout: TrainingLayout) -> int:
    attention, inner = block.attention, block.mlp.active_width
    key_width = attention.kv_heads * attention.head_dim
    widths = {
        "q": hidden + attention.query_width,
        "k": hidden + key_width,
        "v": hidden + attention.kv_width - key_width,
        "o": attention.out_width + hidden,
        "gate": (hidden + inner) * block.mlp.gated,
        "up": hidden + inner,
        "down": inner + hidden,
    }
    return sum(widths[target] for target in layout.lora_targets)
