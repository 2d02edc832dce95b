"""Floating-point operations of a transformer's training step."""

from __future__ import annotations

from .training_layout import TrainingLayout
from .transformer_shape import TransformerShape


def forward_flops_per_token(shape: TransformerShape, seq_len: int) -> float:
    """Return a forward pass's FLOPs per token: 2 per parameter in a product, and attention's own.

    Attention takes 2·(query width + output width) per token and token seen; causal attention sees half the
    sequence on average, as FlashAttention counts. Looking up an embedding takes none. Source: Narayanan et
    al. 2021 (arXiv:2104.04473), appendix, with causality and active experts added.
    """
    hidden = shape.hidden
    flops = 0.0
    for block in shape.all_blocks:
        flops += 2.0 * block.active_params(hidden)
        attention = block.attention
        seen = seq_len if attention.window is None else min(seq_len, attention.window)
        causal_share = 0.5 if shape.causal and seen == seq_len else 1.0
        flops += 2.0 * (attention.query_width + attention.out_width) * seen * causal_share
    if shape.has_head:
        flops += 2.0 * shape.vocab * shape.embedding_width
    return flops


def step_flops(shape: TransformerShape, layout: TrainingLayout) -> float:
    """Return the model's FLOPs of an optimizer step over all devices, recomputation not counted.

    The backward pass takes twice the forward pass: gradients of inputs and of weights. With adapters the
    frozen weights need none, which leaves about once.
    """
    tokens = layout.global_batch_size * (1 if layout.mode == "decode" else layout.seq_len)
    passes = 1.0 if layout.mode != "train" else 3.0 if layout.trains_all else 2.0
    return passes * tokens * forward_flops_per_token(shape, layout.seq_len)
