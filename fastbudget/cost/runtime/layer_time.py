"""Seconds of one layer's forward pass on one device, by cause; a micro-batch at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_flops import tokens_seen
from ..transformer.transformer_shape import AttentionShape, BlockShape, MlpShape, TransformerShape
from .links import Links
from .rates import Rates, attention_seconds, gemm_seconds, memory_seconds

# A 16-bit element, and a 4-bit one read and its 16-bit form written and read again.
_WIDTH = 2.0
_DEQUANTIZED_BYTES = 0.5 + 2 * _WIDTH
# Casts to 8 bits outside of other kernels, each with a pass for the scale.
_UNFUSED_CASTS = 3.0


@dataclass(frozen=True, kw_only=True)
class LayerSeconds:
    """Seconds of a forward pass, each by itself.

    Attributes:
        matrix: matrix products.
        adapters: products and memory traffic of LoRA adapters.
        attention: scores and weighted values.
        memory: norms, activation functions, residuals, routing, dequantization.
        launches: launches times the seconds between them: the least the host takes.
        tensor: collectives of tensor parallelism.
        context: exchange of keys and values.
        experts: all-to-all of tokens.
    """

    matrix: float = 0.0
    adapters: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    launches: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    experts: float = 0.0


@dataclass(frozen=True)
class LayerTimes:
    """Times layers of a model under a layout."""

    shape: TransformerShape
    layout: TrainingLayout
    rates: Rates
    links: Links

    @property
    def tokens(self) -> int:
        """Tokens of a forward pass on one device, before tensor parallelism divides them."""
        layout = self.layout
        return layout.micro_batch_size if layout.mode == "decode" else layout.micro_batch_tokens

    def layer(self, block: BlockShape) -> LayerSeconds:
        """Return the seconds of a layer's forward pass."""
        layout, tokens, hidden = self.layout, self.tokens, self.shape.hidden
        tensor = layout.tensor_parallel
        matrix = self._projections(block.attention) + self._mlp(block.mlp)
        attention = self._attention(block.attention, causal=self.shape.causal)
        collectives = 2
        if block.cross_attention is not None:
            matrix += self._projections(block.cross_attention)
            attention += self._attention(block.cross_attention, causal=False)
            collectives += 1
        context = 0.0
        if layout.context_parallel > 1:
            sent = tokens * block.attention.kv_width / tensor * _WIDTH * (layout.context_parallel - 1)
            context = self.links.neighbor_seconds(sent, layout.context_parallel, tensor)
        experts = 0.0
        if block.mlp.experts and layout.expert_parallel > 1:
            rows = tokens * hidden * _WIDTH / tensor
            experts = 2.0 * self.links.all_to_all_seconds(rows, block.mlp.experts_per_token, layout.expert_parallel)
        whole = tokens * hidden * _WIDTH
        return LayerSeconds(
            matrix=matrix,
            adapters=self._adapters(block),
            attention=attention,
            memory=self._memory(block),
            launches=self._launches(block),
            tensor=collectives * self.links.all_reduce_seconds(whole, tensor),
            context=context,
            experts=experts,
        )

    def head(self) -> LayerSeconds:
        """Return the seconds of the logits and the loss."""
        shape, layout = self.shape, self.layout
        if not shape.has_head:
            return LayerSeconds()
        rows = self.tokens
        columns = shape.vocab / layout.tensor_parallel
        # The head stays in 16 bits under 8-bit training; so do its products' rates, nearly.
        passes = self.rates.constants.head_passes
        if layout.mode == "train":
            loss = "fused" if layout.loss == "eager" and self._is_fused else layout.loss
            passes *= {"eager": 1.0, "shifted": 1.3, "fused": 0.4, "chunked": 0.4}[loss]
        return LayerSeconds(
            matrix=gemm_seconds(rows, max(int(columns), 1), shape.embedding_width, self.rates),
            memory=memory_seconds(rows * columns * _WIDTH * passes, self.rates),
            launches=self.rates.constants.kernels_per_layer / 2 * self.rates.launch_s,
        )

    def _projections(self, attention: AttentionShape) -> float:
        hidden, rows, tensor = self.shape.hidden, self.tokens, self.layout.tensor_parallel
        out = gemm_seconds(rows, hidden, max(attention.out_width // tensor, 1), self.rates)
        if attention.kv_rank is None:
            columns = attention.query_width // tensor + attention.kv_width // min(tensor, attention.kv_heads)
            return out + gemm_seconds(rows, columns, hidden, self.rates)
        queries, width = 0.0, hidden
        if attention.query_rank is not None:
            queries = gemm_seconds(rows, attention.query_rank, hidden, self.rates)
            width = attention.query_rank
        queries += gemm_seconds(rows, attention.query_width // tensor, width, self.rates)
        down = gemm_seconds(rows, attention.kv_rank + attention.rope_head_dim, hidden, self.rates)
        expanded = attention.heads * (attention.head_dim - attention.rope_head_dim + attention.value_head_dim)
        up = gemm_seconds(rows, expanded // tensor, attention.kv_rank, self.rates)
        return queries + down + up + out

    def _mlp(self, mlp: MlpShape) -> float:
        if not mlp.experts:
            return self._dense(self.tokens, mlp.intermediate // self.layout.tensor_parallel, mlp)
        layout = self.layout
        # Expert parallelism takes devices of the tensor-parallel group first; what it leaves divides each expert.
        divided = max(layout.tensor_parallel // layout.expert_parallel, 1)
        local = max(mlp.experts // layout.expert_parallel, 1)
        slots = self.tokens * mlp.experts_per_token / layout.tensor_parallel * divided
        rows = max(int(slots / local), 1)
        routed = min(local, slots) * self._dense(rows, mlp.intermediate // divided, mlp)
        shared = self._dense(self.tokens, mlp.shared_intermediate // layout.tensor_parallel, mlp)
        return routed * self.rates.constants.expert_imbalance + shared

    def _dense(self, rows: int, inner: int, mlp: MlpShape) -> float:
        hidden = self.shape.hidden
        up = gemm_seconds(rows, inner * (2 if mlp.gated else 1), hidden, self.rates)
        return up + gemm_seconds(rows, hidden, inner, self.rates)

    def _attention(self, attention: AttentionShape, *, causal: bool) -> float:
        layout, tensor = self.layout, self.layout.tensor_parallel
        if layout.mode == "decode":
            # One query for each sequence: the cache is read once, which takes longer than its arithmetic.
            seen = layout.seq_len if attention.window is None else min(layout.seq_len, attention.window)
            cached = seen * attention.cached_width / min(tensor, attention.kv_heads) / layout.context_parallel
            return memory_seconds(self.tokens * cached * _WIDTH, self.rates)
        return attention_seconds(
            self.tokens,
            tokens_seen(attention, layout.seq_len, causal=causal),
            max(attention.heads // tensor, 1),
            attention.head_dim,
            attention.value_head_dim,
            self.rates,
            unfused_keys=None if layout.attention == "flash" else layout.seq_len,
        )

    @property
    def _is_fused(self) -> bool:
        return self.rates.fuses or self.layout.compiled or self.layout.framework == "megatron"

    def _memory(self, block: BlockShape) -> float:
        layout, constants = self.layout, self.rates.constants
        tensor, mlp, attention = layout.tensor_parallel, block.mlp, block.attention
        residual = block.norms * self.shape.hidden / (tensor if layout.sequence_parallel else 1)
        inner = attention.query_width + attention.kv_width + attention.out_width
        inner += mlp.active_width * (2 if mlp.gated else 1)
        if mlp.experts:  # rows are copied into the experts' order and back
            inner += 2 * mlp.experts_per_token * self.shape.hidden
        passes = constants.fused_passes if self._is_fused else constants.eager_passes
        moved = self.tokens * (residual + inner / tensor) * layout.compute_bytes * passes
        if self.rates.is_narrow:
            inputs = 2 * self.shape.hidden + (attention.out_width + mlp.active_width) / tensor
            casts = constants.cast_passes * (1.0 if self._is_fused else _UNFUSED_CASTS)
            moved += self.tokens * inputs * layout.compute_bytes * casts
        if layout.quantized_base:
            moved += block.num_params(self.shape.hidden) / tensor * _DEQUANTIZED_BYTES * constants.dequantize_passes
        return memory_seconds(moved, self.rates)

    def _launches(self, block: BlockShape) -> float:
        kernels = self.rates.constants.kernels_per_layer
        if self._is_fused:
            kernels *= 0.5
        if block.mlp.experts:
            kernels *= self.rates.constants.expert_kernels
        if self.layout.lora_rank is not None:
            kernels *= 1.0 + 0.15 * len(self.layout.lora_targets)
        if self.layout.tensor_parallel > 1:
            kernels += 2 * self.rates.constants.kernels_per_collective
        if block.mlp.experts and self.layout.expert_parallel > 1:
            kernels += 2 * self.rates.constants.kernels_per_collective
        return kernels * self.rates.launch_s

    def _adapters(self, block: BlockShape) -> float:
        """Each adapter reads its input, drops some of it, makes two thin products and adds to the output."""
        layout = self.layout
        if layout.lora_rank is None:
            return 0.0
        attention, mlp, hidden = block.attention, block.mlp, self.shape.hidden
        key_width = attention.kv_heads * attention.head_dim
        widths = {
            "q": (hidden, attention.query_width),
            "k": (hidden, key_width),
            "v": (hidden, attention.kv_width - key_width),
            "o": (attention.out_width, hidden),
            "gate": (hidden * mlp.gated, mlp.active_width * mlp.gated),
            "up": (hidden, mlp.active_width),
            "down": (mlp.active_width, hidden),
        }
        moved = float(sum(sum(widths[target]) for target in layout.lora_targets))
        if self._is_fused:  # one adapter for projections that read the same tensor; outputs are added to in place
            moved *= 0.5
        moved /= layout.tensor_parallel
        passes = self.rates.constants.fused_passes
        return memory_seconds(self.tokens * moved * layout.compute_bytes * passes, self.rates)
