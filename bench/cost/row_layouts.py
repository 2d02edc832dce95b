"""The layout of a published row: what it tells, completed by what its framework does and what fits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from assumed_layouts import MEGATRON, REPLICATED, Chosen, Given, Style, choose, needed_bytes, style_of
from row_cells import NotModeled, count
from told_training import Reading

from fastbudget.core.errors import InvalidInputError
from fastbudget.cost.transformer.training_layout import TrainingLayout
from fastbudget.cost.transformer.transformer_shape import TransformerShape
from fastbudget.hardware import Device


def layout_of(
    reading: Reading, shape: TransformerShape, device: Device, given: Given, adapters: dict[str, Any]
) -> TrainingLayout:
    """Return how a row's model was trained: what the row tells, and where it doesn't what fits.

    Raises:
        NotModeled: the sizes in the row don't divide each other.
    """
    row, text, date = reading.row, reading.text, reading.date
    style, chosen = _choice(reading, shape, device, given)
    data = given.devices // (chosen.tensor * chosen.pipeline * chosen.context)
    micro, batch = _batch(reading, given, chosen, data)
    experts = max(block.mlp.experts for block in shape.all_blocks)
    expert_parallel = count(row, "ep") or 1
    if experts and not count(row, "ep") and style.model_parallel:
        expert_parallel = next(
            size for size in (8, 4, 2, 1) if experts % size == 0 and (data * chosen.tensor) % size == 0
        )
        reading.assume(f"EP {expert_parallel}")
    chunks = _chunks(reading, shape, given, chosen, style, batch // (micro * data))
    # FlashAttention came to Megatron-LM in 2023, to its fork for DeepSpeed somewhat later.
    fork = "megatron-deepspeed" in text
    eager = fork if date is None else date < ("2024" if fork else "2023")
    try:
        layout = TrainingLayout(
            seq_len=given.seq_len,
            global_batch_size=batch,
            micro_batch_size=micro,
            num_devices=given.devices,
            tensor_parallel=chosen.tensor,
            pipeline_parallel=chosen.pipeline,
            virtual_pipeline=chunks,
            context_parallel=chosen.context,
            expert_parallel=expert_parallel,
            sharding=chosen.sharding if given.devices > 1 else "none",
            recompute=chosen.recompute,
            precision=given.precision,
            optimizer="adamw-8bit" if re.search(r"8-?bit adam", text) else "adamw",
            offload="all" if re.search(r"cpu[ _-]?offload", text) else "none",
            framework=style.framework,
            attention="eager" if eager else "flash",
            compiled="compile" in text,
            **adapters,
        )
        layout.check(shape)
    except InvalidInputError as error:
        raise NotModeled("the sizes in the row don't divide each other") from error
    return layout


def _choice(reading: Reading, shape: TransformerShape, device: Device, given: Given) -> tuple[Style, Chosen]:
    row = reading.row
    software = f"{row.get('framework', '')} {row.get('domain', '')}".lower()
    if not row.get("framework", "") and "zero" in row.get("sharding", "").lower():
        software = "deepspeed"
    alone = Chosen(tensor=1, pipeline=1, context=1, sharding="none", recompute="full", micro_batch=1)
    fits = needed_bytes(shape, given, alone) < 0.7 * device.memory_bytes
    pipeline = (given.pipeline or 1) > 1
    style = style_of(
        software,
        device,
        params=shape.num_params,
        pipeline=pipeline,
        sharding=given.sharding,
        replicated_fits=fits,
    )
    if given.devices == 1:
        style = replace(REPLICATED, framework=style.framework)
    chosen = choose(shape, device, given, style)
    if chosen is None:  # no layout divides the batch as it is; it is rounded below
        chosen = choose(shape, device, replace(given, global_batch=None), style)
    if chosen is None:
        raise NotModeled("the sizes in the row don't divide each other")
    if given.micro_batch is None:
        reading.assume(f"micro-batch {chosen.micro_batch}")
    if given.tensor is None and given.pipeline is None and style.model_parallel and given.devices > 1:
        reading.assume(f"TP {chosen.tensor}, PP {chosen.pipeline}, CP {chosen.context}")
    if given.recompute is None:
        reading.assume(f"recompute {chosen.recompute}")
    if given.sharding is None and given.devices > 1:
        reading.assume(f"sharding {chosen.sharding}")
    return style, chosen


def _chunks(
    reading: Reading, shape: TransformerShape, given: Given, chosen: Chosen, style: Style, micro_batches: int
) -> int:
    """Return the chunks of layers that a stage holds."""
    row, text = reading.row, reading.text
    if chosen.pipeline == 1:
        return 1
    told = count(row, "vp")
    if told is not None or "interleaved" in text:
        chunks = told or 2
        return chunks if chosen.pipeline * chunks <= shape.layers else 1
    if style is not MEGATRON or re.search(r"deepspeed|neox|1f1b", text):
        return 1
    if given.pipeline and micro_batches >= 4 * given.pipeline:
        return 1
    # Recipes interleave, with some four layers to a chunk; down to one where bubbles would still be long.
    chunks = max(1, round(shape.layers / (4 * chosen.pipeline)))
    if given.pipeline:
        chunks = shape.layers // given.pipeline
    reading.assume(f"{chunks} chunks a stage")
    return chunks


def _batch(reading: Reading, given: Given, chosen: Chosen, data: int) -> tuple[int, int]:
    """Return micro-batch and global batch in sequences."""
    row, text = reading.row, reading.text
    micro = chosen.micro_batch
    if "titan" in text and chosen.pipeline > 1:
        # torchtitan's batch size is that of a step: as many micro-batches as stages by default.
        micro = max(micro // chosen.pipeline, 1)
    per_pass = micro * data
    if given.global_batch is not None:
        batch = max(1, round(given.global_batch / per_pass)) * per_pass
        if given.batch_told and abs(batch / given.global_batch - 1) > 0.25:
            raise NotModeled("the sizes in the row don't divide each other")
        if batch != given.global_batch or not given.batch_told:
            reading.assume(f"a batch of {batch}")
        return micro, batch
    accumulation = re.search(r"grad(?:ient)?[-_ ]?acc\w*[ =:]*(?:of )?(\d+)", row.get("note", "").lower())
    if accumulation:
        return micro, per_pass * int(accumulation[1])
    filling = 1 if chosen.pipeline == 1 else chosen.pipeline if "titan" in text else 8 * chosen.pipeline
    batch = per_pass * filling
    reading.assume(f"a batch of {batch}")
    return micro, batch
