"""The shape of a transformer: the sizes that parameters, activations and FLOPs follow from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """One attention sublayer.

    Attributes:
        heads: query heads.
        kv_heads: key and value heads: fewer than ``heads`` in grouped-query, one in multi-query attention.
        head_dim: size of a query or key head.
        value_head_dim: size of a value head.
        qkv_bias: the three input projections have biases.
        out_bias: the output projection has one.
        extra_params: norms of queries and keys, attention sinks, relative position biases.
        query_rank: rank of the compressed queries of multi-head latent attention (DeepSeek-V2,
            arXiv:2405.04434); None: not compressed.
        kv_rank: rank of its compressed keys and values, which are what it caches; None: ordinary attention.
        rope_head_dim: the part of ``head_dim`` that carries positions and is shared by all heads there.
        latent_bias: the projections to the ranks have biases.
        window: tokens a query sees at most; None: all before it.
        normalizes_qk: queries and keys are normalized, which saves two more activations.
        fused_inputs: one projection makes queries, keys and values.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    extra_params: int = 0
    query_rank: int | None = None
    kv_rank: int | None = None
    rope_head_dim: int = 0
    latent_bias: bool = False
    window: int | None = None
    normalizes_qk: bool = False
    fused_inputs: bool = False

    @property
    def query_width(self) -> int:
        """Elements of a token's queries over all heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys and values together, as attention reads them."""
        return self.kv_heads * (self.head_dim + self.value_head_dim)

    @property
    def out_width(self) -> int:
        """Elements of a token's attention output over all heads."""
        return self.heads * self.value_head_dim

    @property
    def cached_width(self) -> int:
        """Elements a KV cache keeps per token."""
        return self.kv_width if self.kv_rank is None else self.kv_rank + self.rope_head_dim

    def matrix_params(self, hidden: int) -> int:
        """Return the parameters in matrices, [hidden, ...] and [..., hidden]."""
        out = self.out_width * hidden
        if self.kv_rank is None:
            return hidden * (self.query_width + self.kv_width) + out
        plain_dim = self.head_dim - self.rope_head_dim
        queries = (
            hidden * self.query_width
            if self.query_rank is None
            else hidden * self.query_rank + self.query_rank * self.query_width
        )
        down = hidden * (self.kv_rank + self.rope_head_dim)
        up = self.kv_rank * self.heads * (plain_dim + self.value_head_dim)
        return queries + down + up + out

    def num_params(self, hidden: int) -> int:
        """Return all parameters."""
        total = self.matrix_params(hidden) + self.extra_params + self.out_bias * hidden
        if self.kv_rank is None:
            return total + self.qkv_bias * (self.query_width + self.kv_width)
        total += self.kv_rank  # the norm of the compressed keys and values
        if self.query_rank is not None:
            total += self.query_rank
        if self.latent_bias:
            total += (self.query_rank or 0) + self.kv_rank + self.rope_head_dim
        return total


@dataclass(frozen=True, kw_only=True)
class MlpShape:
    """One feed-forward sublayer, dense or a mixture of experts.

    Attributes:
        intermediate: inner width; of one expert in a mixture.
        gated: two input projections, one gating the other (SwiGLU, GEGLU).
        bias: the projections have biases.
        experts: routed experts; 0: dense.
        experts_per_token: routed experts a token visits.
        shared_intermediate: inner width of the experts that every token visits, together.
        router_params: of the router and of a shared expert's gate.
        fused_inputs: one projection makes the gate and what it gates.
    """

    intermediate: int
    gated: bool
    bias: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_intermediate: int = 0
    router_params: int = 0
    fused_inputs: bool = False

    @property
    def active_width(self) -> int:
        """Inner width that a token passes through."""
        if not self.experts:
            return self.intermediate
        return self.intermediate * self.experts_per_token + self.shared_intermediate

    def expert_params(self, hidden: int) -> int:
        """Return the parameters of one expert, or of the dense layer."""
        matrices = (3 if self.gated else 2) * hidden * self.intermediate
        return matrices + self.bias * ((2 if self.gated else 1) * self.intermediate + hidden)

    def shared_params(self, hidden: int) -> int:
        """Return the parameters of shared experts and the router."""
        return (3 if self.gated else 2) * hidden * self.shared_intermediate + self.router_params

    def num_params(self, hidden: int) -> int:
        """Return all parameters."""
        return max(self.experts, 1) * self.expert_params(hidden) + self.shared_params(hidden)

    def active_params(self, hidden: int) -> int:
        """Return the parameters that a token passes through."""
        visited = self.experts_per_token if self.experts else 1
        return visited * self.expert_params(hidden) + self.shared_params(hidden)


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """One layer.

    Attributes:
        attention: self-attention.
        mlp: the feed-forward part.
        norms: norms applied to the residual stream or to a sublayer's output.
        norm_params: parameters of all of them.
        cross_attention: attention to the encoder; None in most models.
    """

    attention: AttentionShape
    mlp: MlpShape
    norms: int
    norm_params: int
    cross_attention: AttentionShape | None = None

    def num_params(self, hidden: int) -> int:
        """Return all parameters."""
        return self._attention_params(hidden) + self.mlp.num_params(hidden)

    def active_params(self, hidden: int) -> int:
        """Return the parameters that a token passes through."""
        return self._attention_params(hidden) + self.mlp.active_params(hidden)

    def expert_params(self, hidden: int) -> int:
        """Return the parameters of routed experts, which expert parallelism divides."""
        return self.mlp.experts * self.mlp.expert_params(hidden)

    def _attention_params(self, hidden: int) -> int:
        cross = 0 if self.cross_attention is None else self.cross_attention.num_params(hidden)
        return self.attention.num_params(hidden) + cross + self.norm_params


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """A transformer, normalized from any family's configuration.

    Attributes:
        family: ``model_type`` of the configuration.
        hidden: width of the residual stream.
        vocab: rows of the embedding.
        embedding_width: columns of the embedding, which differ from ``hidden`` in a few models.
        blocks: layers of the decoder, or of the only stack there is.
        encoder_blocks: layers of the encoder of an encoder-decoder model.
        embedding_extra_params: position and type embeddings, norms and projections before the first layer.
        final_params: norms and projections after the last layer.
        has_head: logits over the vocabulary are computed.
        tied: the head's matrix is the embedding.
        head_extra_params: the head's bias and what comes before its matrix.
        causal: a token sees only those before it.
        rms_norm: norms are RMSNorm as Hugging Face writes it, computed in float32; else LayerNorm.
        dropout: dropout is on in training by the family's habit, and its masks are saved.
        max_positions: rows of a learned position table; None: positions are not learned.
    """

    family: str
    hidden: int
    vocab: int
    embedding_width: int
    blocks: tuple[BlockShape, ...]
    encoder_blocks: tuple[BlockShape, ...] = ()
    embedding_extra_params: int = 0
    final_params: int = 0
    has_head: bool = True
    tied: bool = False
    head_extra_params: int = 0
    causal: bool = True
    rms_norm: bool = True
    dropout: bool = False
    max_positions: int | None = None

    @property
    def layers(self) -> int:
        """Layers of both stacks."""
        return len(self.blocks) + len(self.encoder_blocks)

    @property
    def all_blocks(self) -> tuple[BlockShape, ...]:
        """Layers in the order that a forward pass visits them."""
        return self.encoder_blocks + self.blocks

    @cached_property
    def block_counts(self) -> tuple[tuple[BlockShape, int], ...]:
        """Each different layer, and how many there are."""
        return tuple(Counter(self.all_blocks).items())

    @property
    def embedding_params(self) -> int:
        """Parameters before the first layer."""
        return self.vocab * self.embedding_width + self.embedding_extra_params

    @property
    def head_params(self) -> int:
        """Parameters after the last layer that are not the embedding's."""
        matrix = self.vocab * self.embedding_width if self.has_head and not self.tied else 0
        return self.final_params + matrix + (self.head_extra_params if self.has_head else 0)

    @cached_property
    def num_params(self) -> int:
        """All parameters; tied ones count once."""
        blocks = sum(count * block.num_params(self.hidden) for block, count in self.block_counts)
        return self.embedding_params + blocks + self.head_params

    @cached_property
    def num_active_params(self) -> int:
        """Parameters that a token passes through: all but the experts it doesn't visit."""
        blocks = sum(count * block.active_params(self.hidden) for block, count in self.block_counts)
        return self.embedding_params + blocks + self.head_params
