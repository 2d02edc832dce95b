"""Bytes of a checkpoint from which training can go on."""

from __future__ import annotations

from dataclasses import replace

from ..transformer.model_states import StateBytes, block_group, embedding_group, head_group
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_shape import TransformerShape


def checkpoint_bytes(shape: TransformerShape, layout: TrainingLayout) -> int:
    """Return the bytes of trained weights and optimizer states over all devices; frozen weights are on disk already."""
    whole = replace(
        layout,
        num_devices=1,
        tensor_parallel=1,
        pipeline_parallel=1,
        virtual_pipeline=1,
        context_parallel=1,
        expert_parallel=1,
        micro_batch_size=1,
        sharding="none",
        offload="none",
    )
    states = StateBytes(whole)
    groups = [(block_group(block, shape, whole), count) for block, count in shape.block_counts]
    groups += [(embedding_group(shape, whole), 1), (head_group(shape, whole, own_copy=False), 1)]
    return sum(
        count * (states.weight_bytes * states.trained(group) + states.optimizer(group)) for group, count in groups
    )
