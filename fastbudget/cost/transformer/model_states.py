"""Bytes of parameters, gradients and optimizer states on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .training_layout import TrainingLayout
from .transformer_shape import BlockShape, TransformerShape

# NF4 with double quantization: 4 bits, an 8-bit scale per 64 weights, a float32 scale per 256 of those.
# Source: QLoRA, arXiv:2305.14314, section 3.
_NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
# 8-bit states have a float32 scale per 256 elements. Source: arXiv:2110.02861, block size of bitsandbytes.
_STATE_8BIT_BYTES = 1 + 4 / 256
# DeepSpeed's ZeRO-3 steps over groups of at most this many elements, each with a float32 gradient.
# Source: `sub_group_size` in deepspeed/runtime/zero/config.py.
_DEEPSPEED_SUBGROUP = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that are gathered, trained and freed together: one layer, or the embedding, or the head.

    Attributes:
        matrices: trained or frozen matrix elements on this rank before ZeRO shards them.
        others: other elements, likewise: norms, biases, and embeddings, which stay unquantized.
        experts: elements of local experts, likewise.
        adapters: elements of LoRA adapters, likewise; always trained.
        copied: elements trained in full beside adapters, in a copy (``modules_to_save`` of peft).
        state_rows: rows and columns of the matrices, for the factored states of Adafactor.
        parts: relative sizes of its tensors, which the allocator sees one by one.
    """

    matrices: int
    others: int
    experts: int = 0
    adapters: int = 0
    copied: int = 0
    state_rows: int = 0
    parts: tuple[int, ...] = (1,)

    @property
    def base(self) -> int:
        """Elements without the adapters."""
        return self.matrices + self.others + self.experts

    @property
    def size(self) -> int:
        """All elements."""
        return self.base + self.adapters + self.copied


def block_group(block: BlockShape, shape: TransformerShape, layout: TrainingLayout) -> ParameterGroup:
    """Return the parameters of a layer on one rank of its tensor- and expert-parallel groups."""
    tensor = layout.tensor_parallel
    hidden = shape.hidden
    total = block.num_params(hidden)
    experts = block.expert_params(hidden)
    # Experts divide over their own group; tensor parallelism divides what that group leaves.
    local_experts = experts // max(layout.expert_parallel, 1)
    if layout.expert_parallel < tensor:
        local_experts //= tensor // layout.expert_parallel
    matrices = block.attention.matrix_params(hidden)
    if block.cross_attention is not None:
        matrices += block.cross_attention.matrix_params(hidden)
    factor = 3 if block.mlp.gated else 2
    dense_width = block.mlp.shared_intermediate if block.mlp.experts else block.mlp.intermediate
    matrices += factor * hidden * dense_width
    others = total - matrices - experts
    rows = 4 * hidden + block.attention.query_width + block.attention.kv_width + block.attention.out_width
    rows += factor * (hidden + dense_width) + factor * block.mlp.experts * (hidden + block.mlp.intermediate)
    return ParameterGroup(
        matrices=matrices // tensor,
        others=others,
        experts=local_experts,
        adapters=_adapters(block, hidden, layout) // tensor,
        state_rows=rows,
        parts=_parts(block, hidden),
    )


def embedding_group(shape: TransformerShape, layout: TrainingLayout) -> ParameterGroup:
    """Return the parameters before the first layer; tensor parallelism divides the vocabulary."""
    matrix = shape.vocab * shape.embedding_width // layout.tensor_parallel
    return ParameterGroup(
        matrices=0,
        others=matrix + shape.embedding_extra_params,
        copied=matrix if layout.trains_embeddings else 0,
        state_rows=shape.vocab + shape.embedding_width,
    )


def head_group(shape: TransformerShape, layout: TrainingLayout, *, own_copy: bool) -> ParameterGroup:
    """Return the parameters after the last layer. A tied head on another stage has a copy of its own."""
    has_matrix = shape.has_head and (own_copy or not shape.tied)
    matrix = shape.vocab * shape.embedding_width // layout.tensor_parallel if has_matrix else 0
    extra = shape.final_params + (shape.head_extra_params if shape.has_head else 0)
    return ParameterGroup(
        matrices=0,
        others=matrix + extra,
        copied=matrix if layout.trains_embeddings else 0,
        state_rows=shape.vocab if has_matrix else 0,
    )


def _parts(block: BlockShape, hidden: int) -> tuple[int, ...]:
    attention, mlp = block.attention, block.mlp
    sizes = [attention.query_width, attention.kv_width // 2, attention.kv_width // 2, attention.out_width]
    if block.cross_attention is not None:
        sizes *= 2
    if mlp.experts:  # the experts of a layer are one tensor per projection
        sizes += [mlp.experts * mlp.intermediate * (2 if mlp.gated else 1), mlp.experts * mlp.intermediate]
    else:
        sizes += [mlp.intermediate] * (3 if mlp.gated else 2)
    return tuple(size * hidden for size in sizes)


def _adapters(block: BlockShape, hidden: int, layout: TrainingLayout) -> int:
    if layout.lora_rank is None:
        return 0
    attention, inner = block.attention, block.mlp.intermediate
    experts = max(block.mlp.experts, 1)
    key_width = attention.kv_heads * attention.head_dim
    widths = {
        "q": hidden + attention.query_width,
        "k": hidden + key_width,
        "v": hidden + attention.kv_width - key_width,
        "o": attention.out_width + hidden,
        "gate": (hidden + inner) * experts * block.mlp.gated,
        "up": (hidden + inner) * experts,
        "down": (inner + hidden) * experts,
    }
    return layout.lora_rank * sum(widths[target] for target in layout.lora_targets)


@dataclass(frozen=True)
class StateBytes:
    """Bytes that groups of parameters need under a layout, on one rank."""

    layout: TrainingLayout

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes per stored trained parameter. PyTorch trains float32 weights; others keep 16-bit ones."""
        layout = self.layout
        if layout.compute_bytes == 4:
            return 4
        if layout.precision in ("bf16", "fp16") or layout.mode != "train":
            return 2
        return 4 if layout.framework == "pytorch" else 2

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes per gradient. Megatron accumulates in float32 (``main_grad``), others in the weight's type."""
        if self.layout.framework == "megatron" and self.layout.precision != "bf16":
            return 4
        return self.weight_bytes

    @cached_property
    def has_master(self) -> bool:
        """The optimizer holds float32 copies of 16-bit weights."""
        return self.layout.precision.endswith("-mixed") and self.layout.framework != "pytorch"

    def parameters(self, group: ParameterGroup) -> int:
        """Bytes of the weights that stay on the device."""
        layout = self.layout
        if layout.offload == "all":
            return 0
        if layout.trains_all:
            total = self.weight_bytes * group.size
        else:
            total = self.frozen_bytes(group) + self._adapted_bytes(group)
        return self._divided(total, group) if self._shards_weights else total

    def frozen_bytes(self, group: ParameterGroup) -> int:
        """Bytes of a group's frozen weights, unsharded."""
        width = self.layout.compute_bytes
        matrices = group.matrices + group.experts
        return int((_NF4_BYTES if self.layout.quantized_base else width) * matrices) + width * group.others

    def _divided(self, total: int, group: ParameterGroup) -> int:
        """Bytes on one rank: experts, already divided over their group, have fewer replicas to shard over."""
        layout = self.layout
        experts = total * group.experts // max(group.size, 1)
        replicas = max(layout.shard_ranks * layout.tensor_parallel // layout.expert_parallel, 1)
        return (total - experts) // layout.shard_ranks + experts // min(replicas, layout.shard_ranks)

    def _adapted_bytes(self, group: ParameterGroup) -> int:
        """Bytes of one float32 value per adapter element, and one of the compute type per copied element."""
        return 4 * group.adapters + self.layout.compute_bytes * group.copied

    @property
    def _shards_weights(self) -> bool:
        # PyTorch's ZeRO-2 is FSDP without resharding after the forward pass: it shards weights too.
        return self.layout.sharding == "zero3" or (
            self.layout.sharding == "zero2" and self.layout.framework == "pytorch"
        )

    @property
    def gathers(self) -> bool:
        """Weights are gathered from other ranks, or from the CPU, before use."""
        return (self._shards_weights and self.layout.shard_ranks > 1) or self.layout.offload == "all"

    def trained(self, group: ParameterGroup) -> int:
        """Return the elements that have gradients."""
        return group.size if self.layout.trains_all else group.adapters + group.copied

    def gradients(self, group: ParameterGroup) -> int:
        """Bytes of gradients that live until the optimizer step."""
        layout = self.layout
        if layout.offload != "none" and layout.framework == "deepspeed":
            return 0  # each goes to the CPU as soon as it is reduced
        if layout.offload == "all":
            return 0
        total = self.gradient_bytes * group.size if layout.trains_all else self._adapted_bytes(group)
        return self._divided(total, group) if layout.sharding in ("zero2", "zero3") else total

    def optimizer(self, group: ParameterGroup) -> int:
        """Bytes of optimizer states, float32 copies included."""
        layout = self.layout
        if layout.offload != "none":
            return 0
        width = 4 if self.has_master else self.weight_bytes
        trained = self.trained(group)
        matrices = group.matrices + group.experts if layout.trains_all else trained
        one = width * trained if layout.trains_all else self._adapted_bytes(group)
        states = {
            "adamw": 2 * one,
            "adamw-8bit": int(2 * _STATE_8BIT_BYTES * trained),
            "sgd": 0,
            "sgd-momentum": one,
            "adafactor": 4 * group.state_rows,
            "lion": one,
            # Momentum for matrices, AdamW for the rest. Source: github.com/KellerJordan/Muon.
            "muon": one + width * (trained - matrices),
        }[layout.optimizer]
        master = 4 * trained if self.has_master and layout.trains_all else 0
        total = states + master
        return total if layout.sharding == "none" else self._divided(total, group)

    def step_temporary(self, groups: list[ParameterGroup]) -> int:
        """Bytes of temporaries of the optimizer step.

        PyTorch's foreach AdamW holds the square root of all second moments at once (``exp_avg_sq_sqrt`` in
        torch/optim/adamw.py), in 2.0 also the denominator made of it. DeepSpeed's fused Adam needs neither but
        takes float32 gradients, of one subgroup at a time under ZeRO-3.
        """
        layout = self.layout
        if layout.offload != "none":
            return 0
        ranks = 1 if layout.sharding == "none" else layout.shard_ranks
        trained = sum(self.trained(group) for group in groups) // ranks
        if layout.framework == "deepspeed" and self.has_master and layout.trains_all:
            return 4 * (min(trained, _DEEPSPEED_SUBGROUP) if layout.sharding == "zero3" else trained)
        if layout.framework == "megatron" or layout.optimizer != "adamw" or layout.optimizer_kernels == "fused":
            return 0
        sizes = [self._one_value(group) // ranks for group in groups]
        if layout.optimizer_kernels == "for-loop":
            return max(size * max(group.parts) // sum(group.parts) for size, group in zip(sizes, groups, strict=True))
        return sum(sizes) * (2 if layout.optimizer_kernels == "foreach-2.0" else 1)

    def _one_value(self, group: ParameterGroup) -> int:
        """Bytes of one value per trained element, in its own type."""
        return self.weight_bytes * group.size if self.layout.trains_all else self._adapted_bytes(group)
