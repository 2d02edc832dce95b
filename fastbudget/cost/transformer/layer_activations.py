"""What one layer saves in the forward pass for its backward pass, tensor by tensor.

The accounting follows Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models" (arXiv:2205.05198), section 4: with eager attention, dropout and LayerNorm it gives their
s·b·h·(34 + 5·a·s/h) bytes. It departs from them where today's models do: attention that saves no scores,
grouped-query heads, gated MLPs, RMSNorm computed in float32, mixtures of experts, frozen weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from .training_layout import TrainingLayout
from .transformer_shape import AttentionShape, BlockShape, MlpShape, TransformerShape

# They compute scores whatever attention is asked for.
_EAGER_ATTENTION_FAMILIES = ("bloom",)
# ReLU saves its result, which is the second matrix's input.
_RELU_FAMILIES = ("opt", "t5")
# One projection makes queries, keys and values, and rotation copies the first two; the whole stays for the values.
_FUSED_ROTARY_FAMILIES = ("gpt_neox", "falcon", "phi3", "qwen")
# Rotating part of a head leaves a layout whose attention output has to be copied.
_PARTIAL_ROTARY_FAMILIES = ("gpt_neox", "gptj", "phi", "stablelm")
# Attention and MLP read the same residual, which is saved once.
_PARALLEL_FAMILIES = ("gpt_neox", "gptj", "phi", "falcon", "cohere", "cohere2")
# Their `gelu_new` is written in Python: every product and the tanh are saved. (gemma, starcoder2: one native op.)
_EAGER_GELU_FAMILIES = ("gpt2", "gptj", "phi")


@dataclass(frozen=True, kw_only=True)
class LayerActivations:
    """Bytes of a layer's activations for one micro-batch on one rank.

    Attributes:
        input_bytes: the residual stream that enters, which full recompute keeps alone.
        saved: tensors kept for the backward pass under the layout's recompute, without the input.
        recomputed: tensors that exist while the layer's backward pass runs but aren't kept until then.
        working_bytes: gradients of activations and temporaries alive at once in the backward pass.
    """

    input_bytes: int
    saved: tuple[int, ...]
    recomputed: tuple[int, ...]
    working_bytes: int


@dataclass(frozen=True)
class ActivationModel:
    """Activations under a layout."""

    shape: TransformerShape
    layout: TrainingLayout
    tokens: int

    def layer(self, block: BlockShape) -> LayerActivations:
        """Return what one layer keeps for a micro-batch."""
        layout = self.layout
        everything = self._attention(block.attention) + self._mlp(block.mlp) + self._norms(block.norms)
        if block.cross_attention is not None:
            everything += self._attention(block.cross_attention)
        input_bytes = self._residual_bytes(self.tokens * self.shape.hidden)
        if layout.recompute == "full":
            kept: list[int] = []
        elif layout.recompute == "selective":
            kept = self._kept_selectively(block, everything)
        else:
            kept = everything
        recomputed = everything if layout.recompute != "none" else []
        if layout.recompute == "selective":
            recomputed = _scaled(everything, max(sum(everything) - sum(kept), 0))
        return LayerActivations(
            input_bytes=input_bytes,
            saved=tuple(size for size in kept if size),
            recomputed=tuple(size for size in recomputed if size),
            working_bytes=self._working_bytes(block),
        )

    def final_saved(self) -> list[int]:
        """Return what the final norm and the head keep."""
        hidden = self.tokens * self.shape.hidden
        kept = self._norm(hidden)
        if self.layout.trains_all:
            kept.append(self.layout.compute_bytes * hidden)
        return kept

    def _residual_bytes(self, elements: int) -> int:
        """Bytes of a tensor of the residual stream: float32 under autocast, as the embedding is."""
        layout = self.layout
        return (4 if self._autocast else layout.compute_bytes) * elements // self._residual_ranks

    @property
    def _autocast(self) -> bool:
        """Each operation converts its inputs: the residual stream is float32, as the embedding is."""
        layout = self.layout
        return (
            layout.precision.endswith("-mixed")
            and layout.framework == "pytorch"
            and layout.sharding in ("none", "zero1")
            and layout.trains_all
        )

    @property
    def _residual_ranks(self) -> int:
        return self.layout.tensor_parallel if self.layout.sequence_parallel else 1

    def _norms(self, norms: int) -> list[int]:
        kept: list[int] = []
        for _ in range(1 if self.shape.family in _PARALLEL_FAMILIES else norms):
            kept += self._norm(self.tokens * self.shape.hidden)
        if self.shape.dropout:
            kept += [self.tokens * self.shape.hidden // self._residual_ranks] * 2  # masks, a byte each
        return kept

    def _norm(self, elements: int) -> list[int]:
        layout = self.layout
        if self.shape.rms_norm and not layout.compiled and layout.framework != "megatron":
            # transformers converts the input to float32 and keeps that, and the result if the weight is trained.
            scaled = self._residual_bytes(elements) if layout.trains_all else 0
            return [4 * elements // self._residual_ranks, scaled]
        return [self._residual_bytes(elements)]

    def _linear_inputs(self, width: int, targets: tuple[str, ...], *, fused: bool, ranks: int) -> list[int]:
        """Inputs kept for the gradients of the weights of projections that read the same tensor.

        Without autocast they share one. Autocast converts the float32 tensor for each of them. peft converts it
        for each adapter to its float32 (``_cast_input_dtype``), and autocast that back to 16 bits.
        """
        layout = self.layout
        elements = self.tokens * width // ranks
        narrow = layout.compute_bytes * elements
        if layout.trains_all:
            copies = len(targets) if self._autocast and not fused and not layout.compiled else 1
            return [narrow] * copies
        adapted = [target for target in targets if target in layout.lora_targets]
        if not adapted:
            return []
        size = narrow if layout.precision.endswith("-mixed") else 4 * elements
        return [size for _ in (adapted[:1] if fused else adapted)]

    def _attention(self, attention: AttentionShape) -> list[int]:
        layout, tokens = self.layout, self.tokens
        width, tensor = layout.compute_bytes, layout.tensor_parallel
        queries = width * tokens * attention.query_width // tensor
        keys_values = width * tokens * attention.kv_width // min(tensor, attention.kv_heads)
        out = width * tokens * attention.out_width // tensor
        kept = self._linear_inputs(
            self.shape.hidden, ("q", "k", "v"), fused=attention.fused_inputs, ranks=self._residual_ranks
        )
        kept += [queries, keys_values, out]
        key_width = attention.kv_heads * attention.head_dim
        rotated = tokens * (attention.query_width + key_width) // tensor
        if attention.normalizes_qk and attention.kv_rank is None:
            kept += [4 * rotated, width * rotated]  # the norms' input in float32 and their result
        if self.shape.family in _FUSED_ROTARY_FAMILIES:
            kept.append(width * rotated)
        if self.shape.family in _PARTIAL_ROTARY_FAMILIES:
            kept.append(out)
        if attention.kv_rank is not None:
            latent = attention.kv_rank + attention.rope_head_dim + (attention.query_rank or 0)
            kept += [2 * width * tokens * latent]
        if not self._saves_scores(attention):
            kept.append(4 * tokens * attention.heads // tensor)  # log-sum-exp
        else:
            scores = tokens * layout.seq_len * attention.heads // tensor
            if attention.heads != attention.kv_heads:  # keys and values are repeated for every query head
                kept.append(queries + out - keys_values)
            if layout.framework == "megatron":
                # Softmax, dropout mask and dropped scores: the 5·a·s term.
                kept += [width * scores, scores, width * scores]
            else:
                # transformers runs softmax in float32 and converts back.
                kept += [4 * scores, width * scores if width < 4 else 0]
        if not layout.trains_all and "o" in layout.lora_targets:
            kept.append(out if layout.precision.endswith("-mixed") else 2 * out)
        return kept

    def _saves_scores(self, attention: AttentionShape) -> bool:
        """Flash attention takes 16 bits only; what serves float32 has no grouped-query heads, and falls back."""
        grouped_float32 = self.layout.compute_bytes == 4 and attention.heads != attention.kv_heads
        return self.layout.attention == "eager" or self.shape.family in _EAGER_ATTENTION_FAMILIES or grouped_float32

    def _mlp(self, mlp: MlpShape) -> list[int]:
        layout, tokens = self.layout, self.tokens
        width, tensor = layout.compute_bytes, layout.tensor_parallel
        visited = mlp.experts_per_token if mlp.experts else 1
        inner = width * tokens * mlp.active_width // tensor
        targets = ("gate", "up") if mlp.gated else ("up",)
        kept = self._linear_inputs(
            self.shape.hidden * visited,
            targets,
            fused=mlp.fused_inputs or bool(mlp.experts),
            ranks=self._residual_ranks,
        )
        kept += self._inner_tensors(mlp, inner)
        if not layout.trains_all and "down" in layout.lora_targets:
            kept.append(inner if layout.precision.endswith("-mixed") else 2 * inner)
        if mlp.experts:
            # Rows in the experts' order and the experts' outputs, kept to scale them by the router.
            kept += [width * tokens * self.shape.hidden * visited // self._residual_ranks]
            kept += [4 * tokens * mlp.experts] * 2
        return kept

    def _inner_tensors(self, mlp: MlpShape, size: int) -> list[int]:
        """Saved tensors of the MLP's inner width: what the activation function and the second matrix need."""
        layout = self.layout
        second = [size] if layout.trains_all else []
        if mlp.gated:
            return [size] * 2 if layout.compiled else [size] * 3 + second
        if layout.compiled or layout.framework == "megatron":
            return [size] * 2
        if self.shape.family in _EAGER_GELU_FAMILIES:
            # Half the input, the input to the power of 3, the tanh and 1 more; autocast takes powers in float32.
            wide = size * 4 // layout.compute_bytes if self._autocast else size
            return [size, wide, wide, wide, *second]
        if self.shape.family in _RELU_FAMILIES:
            # T5 drops some of the result: a mask of a byte and a copy.
            dropped = [size // layout.compute_bytes, *second] if self.shape.family == "t5" else []
            return [size, *dropped]
        return [size, *second]

    def _kept_selectively(self, block: BlockShape, everything: list[int]) -> list[int]:
        layout, attention = self.layout, block.attention
        width, tensor = layout.compute_bytes, layout.tensor_parallel
        if self._saves_scores(attention):
            scores = self.tokens * layout.seq_len * attention.heads // tensor
            large = {4 * scores, width * scores, scores}
            return [size for size in everything if size not in large]
        # Of q, k, v, o, gate, up, down torchtitan keeps the first, third, ... and the attention's output.
        key_width = attention.kv_heads * attention.head_dim
        kept = attention.query_width + attention.kv_width - key_width + attention.out_width
        kept += block.mlp.active_width
        sequence = self.shape.hidden if block.mlp.gated else 0
        return [
            width * self.tokens * attention.query_width // tensor,
            width * self.tokens * (kept - attention.query_width) // tensor,
            width * self.tokens * sequence // self._residual_ranks,
            4 * self.tokens * attention.heads // tensor,
        ]

    def _working_bytes(self, block: BlockShape) -> int:
        """The larger of the MLP's and the attention's gradients, beside the residual stream's."""
        width, tensor = self.layout.compute_bytes, self.layout.tensor_parallel
        inner = (3 if block.mlp.gated else 2) * block.mlp.active_width
        attention = block.attention.query_width + block.attention.kv_width + 2 * block.attention.out_width
        # Tensor parallelism gathers the whole sequence before each sublayer.
        return width * self.tokens * max(inner, attention) // tensor + 2 * width * self.tokens * self.shape.hidden


def _scaled(sizes: list[int], total: int) -> list[int]:
    full = sum(sizes)
    return [size * total // full for size in sizes] if full else []
