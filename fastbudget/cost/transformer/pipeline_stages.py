"""Which layers a pipeline stage holds and how many micro-batches are in flight on it."""

from __future__ import annotations

from dataclasses import dataclass

from .training_layout import TrainingLayout
from .transformer_shape import BlockShape, TransformerShape


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One stage.

    Attributes:
        index: its place, from 0.
        blocks: its layers over all its chunks.
        first: it embeds tokens.
        last: it computes logits and the loss.
        in_flight: forward passes, over all its layers, whose activations are alive at once. A fraction when
            a stage holds several chunks.
    """

    index: int
    blocks: tuple[BlockShape, ...]
    first: bool
    last: bool
    in_flight: float


def pipeline_stages(shape: TransformerShape, layout: TrainingLayout) -> tuple[PipelineStage, ...]:
    """Divide a model's layers over stages, the longer chunks first.

    Under 1F1B, stage i of p holds min(p - i, micro-batches) forward passes. With v chunks a stage runs
    2·(p - i - 1) + (v - 1)·p + 1 chunks ahead of its backward passes. Source: Narayanan et al. 2021
    (arXiv:2104.04473), section 2.2, and Megatron-LM's schedules.py.
    """
    stages, chunks = layout.pipeline_parallel, layout.virtual_pipeline
    held = _divided(shape.all_blocks, stages * chunks)
    result = []
    for index in range(stages):
        blocks = tuple(block for chunk in range(chunks) for block in held[chunk * stages + index])
        in_flight: float = min(stages - index, layout.micro_batches)
        if chunks > 1:
            ahead = 2 * (stages - index - 1) + (chunks - 1) * stages + 1
            in_flight = min(ahead, layout.micro_batches * chunks) / chunks
        result.append(
            PipelineStage(
                index=index,
                blocks=blocks,
                first=index == 0,
                last=index == stages - 1,
                in_flight=in_flight if stages > 1 else 1,
            )
        )
    return tuple(result)


def _divided(blocks: tuple[BlockShape, ...], parts: int) -> list[tuple[BlockShape, ...]]:
    size, longer = divmod(len(blocks), parts)
    result, start = [], 0
    for part in range(parts):
        end = start + size + (part < longer)
        result.append(blocks[start:end])
        start = end
    return result
