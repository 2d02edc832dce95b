"""Seconds of what follows, or hides behind, the passes: gradients, sharded weights, the optimizer, offloading."""

from __future__ import annotations

from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_flops import adapter_params
from ..transformer.transformer_shape import TransformerShape
from .links import Links
from .rates import Rates, memory_seconds

# Bytes that an optimizer's step reads and writes per parameter: gradient, states, float32 weight, 16-bit weight.
_OPTIMIZER_BYTES = {
    "adamw": 30.0,
    "adamw-8bit": 18.0,
    "sgd": 14.0,
    "sgd-momentum": 22.0,
    "adafactor": 18.0,
    "lion": 22.0,
    "muon": 22.0,
}
# Newton-Schulz of Muon: five iterations of about 6·rows·rows·columns. Source: github.com/KellerJordan/Muon.
_MUON_FLOPS = 30.0
# One device's share of the host: its memory for an optimizer step there, its link for what moves.
_HOST_BYTES_PER_S = 25e9
_HOST_LINK_BYTES_PER_S = 16e9
# However well it is hidden, a tail remains: the first gather, the last bucket.
_LEAST_EXPOSED = 0.08


def data_parallel_seconds(shape: TransformerShape, layout: TrainingLayout, links: Links, window: float) -> float:
    """Return the seconds of a step's data-parallel communication that computation can't hide.

    Args:
        shape: the model.
        layout: how it is trained.
        links: of the device.
        window: seconds of one micro-batch's passes, behind which communication can hide.
    """
    if layout.shard_ranks == 1:
        return 0.0
    tensor = layout.tensor_parallel
    dense, experts = _local_params(shape, layout)
    trained = _trained_params(shape, layout)
    replicas = max(layout.shard_ranks * tensor // layout.expert_parallel, 1)

    def gathered(params_bytes: float) -> float:
        seconds = links.gather_seconds(dense * params_bytes, layout.shard_ranks, tensor)
        if experts:
            seconds += links.gather_seconds(experts * params_bytes, replicas, layout.expert_parallel)
        return seconds

    weights = gathered(2.0 if layout.precision != "fp32" else 4.0)
    gradients = gathered(_gradient_bytes(layout)) * trained / (dense + experts)
    overlap = links.data_overlap
    if layout.sharding == "zero3":
        each = 2.0 * weights + gradients
        return layout.micro_batches * _exposed(each, overlap * window)
    if layout.sharding == "zero2" and layout.framework == "pytorch":
        each = weights + gradients
        return layout.micro_batches * _exposed(each, overlap * window)
    if layout.sharding == "zero2":
        # Gradients are reduced with every micro-batch, weights gathered after the optimizer's step.
        each = _exposed(gradients, overlap * window * 2 / 3)
        return layout.micro_batches * each + (weights if layout.trains_all else 0.0)
    if layout.sharding == "zero1":
        gathered_weights = weights if layout.trains_all else 0.0
        return _exposed(gradients, overlap * window * 2 / 3) + _exposed(gathered_weights, overlap * window / 3)
    return _exposed(2.0 * gradients, overlap * window * 2 / 3)


def optimizer_seconds(shape: TransformerShape, layout: TrainingLayout, rates: Rates) -> float:
    """Return the seconds of the optimizer's step on the device."""
    if layout.offload != "none":
        return 0.0
    ranks = 1 if layout.sharding == "none" else layout.shard_ranks
    trained = _trained_params(shape, layout) / ranks
    moved = trained * _OPTIMIZER_BYTES[layout.optimizer]
    if layout.framework == "pytorch" and layout.optimizer_kernels != "fused" and not layout.compiled:
        moved *= 2.0  # each operation of the formula reads and writes for itself
    seconds = memory_seconds(moved * rates.constants.optimizer_passes, rates)
    if layout.optimizer == "muon":
        seconds += _MUON_FLOPS * trained * shape.hidden / rates.matrix_flops_per_s
    return seconds


def offload_seconds(shape: TransformerShape, layout: TrainingLayout) -> float:
    """Return the seconds that states on the CPU cost: their step there, and what crosses the link."""
    if layout.offload == "none":
        return 0.0
    ranks = 1 if layout.sharding == "none" else layout.shard_ranks
    trained = _trained_params(shape, layout) / ranks
    seconds = trained * _OPTIMIZER_BYTES[layout.optimizer] / _HOST_BYTES_PER_S
    seconds += trained * 4.0 / _HOST_LINK_BYTES_PER_S  # 16-bit gradients down, weights up
    if layout.offload == "all":
        crossed = sum(_local_params(shape, layout)) / ranks * 2.0 * 3.0
        seconds += layout.micro_batches * crossed / _HOST_LINK_BYTES_PER_S
    return seconds


def _exposed(seconds: float, hidden: float) -> float:
    return max(seconds - hidden, _LEAST_EXPOSED * seconds)


def _gradient_bytes(layout: TrainingLayout) -> float:
    """Bytes per gradient as it travels: float32 under DDP and Megatron, 16 bits under FSDP and DeepSpeed."""
    if layout.precision in ("bf16", "fp16"):
        return 2.0
    if layout.precision == "fp32":
        return 4.0
    return 4.0 if layout.sharding == "none" or layout.framework == "megatron" else 2.0


def _local_params(shape: TransformerShape, layout: TrainingLayout) -> tuple[float, float]:
    """Return the parameters on one device before ZeRO shards them: those of experts apart."""
    tensor, stages = layout.tensor_parallel, layout.pipeline_parallel
    experts = sum(count * block.expert_params(shape.hidden) for block, count in shape.block_counts)
    ends = shape.embedding_params + shape.head_params
    # The first stage has the embedding, the last one the head: a stage in the middle has neither.
    ends_held = ends if stages == 1 else ends / 2.0
    dense = sum(count * block.num_params(shape.hidden) for block, count in shape.block_counts) - experts
    divided = max(layout.expert_parallel, tensor)
    return (dense / stages + ends_held) / tensor, experts / stages / divided


def _trained_params(shape: TransformerShape, layout: TrainingLayout) -> float:
    """Return the trained parameters on one device before ZeRO shards them."""
    if layout.trains_all:
        return sum(_local_params(shape, layout))
    own = layout.tensor_parallel * layout.pipeline_parallel
    copied = 2 * shape.vocab * shape.embedding_width if layout.trains_embeddings else 0
    return (adapter_params(shape, layout) + copied) / own
