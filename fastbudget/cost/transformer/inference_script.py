"""Write down what one rank allocates in a forward pass without gradients, or to decode with a KV cache."""

from __future__ import annotations

from .layer_activations import ActivationModel
from .model_states import StateBytes, block_group, embedding_group, head_group
from .pipeline_stages import PipelineStage
from .stage_events import StageEvents
from .training_layout import TrainingLayout
from .transformer_shape import TransformerShape


def inference_events(
    shape: TransformerShape, layout: TrainingLayout, stage: PipelineStage, workspace_bytes: int
) -> StageEvents:
    """Return the events of one forward pass of ``micro_batch_size`` sequences, or of one decoded token each."""
    events, states = StageEvents(), StateBytes(layout)
    groups = [block_group(block, shape, layout) for block in stage.blocks]
    if stage.first:
        groups.insert(0, embedding_group(shape, layout))
    if stage.last:
        groups.append(head_group(shape, layout, own_copy=layout.pipeline_parallel > 1))
    for group in groups:
        events.allocate("parameter", states.parameters(group))
    events.allocate("buffer", workspace_bytes)
    decoding = layout.mode == "decode"
    tokens = layout.micro_batch_size if decoding else layout.micro_batch_tokens
    if decoding:
        for block in stage.blocks:
            attention = block.attention
            length = layout.seq_len if attention.window is None else min(layout.seq_len, attention.window)
            width = attention.cached_width
            if attention.kv_rank is None:  # a latent cache is whole on every rank
                width //= min(layout.tensor_parallel, attention.kv_heads)
            size = layout.compute_bytes * layout.micro_batch_size * length * width // layout.context_parallel
            events.allocate("buffer", size)
    activations = ActivationModel(shape, layout, tokens)
    for block in stage.blocks:
        layer = activations.layer(block)
        events.free(
            events.allocate("activation", layer.input_bytes),
            events.allocate("activation", layer.input_bytes),
            events.allocate("temporary", layer.working_bytes),
        )
    if stage.last and shape.has_head:
        logits = tokens * shape.vocab // layout.tensor_parallel
        events.free(
            events.allocate("logits", layout.compute_bytes * logits),
            events.allocate("logits", 4 * logits if layout.compute_bytes < 4 else 0),
        )
    return events
