"""Choose what a published row leaves out of its layout: what its framework does and what fits the memory.

A row is never recognized; the same words always give the same choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from operator import itemgetter

from fastbudget.cost.transformer.transformer_shape import TransformerShape
from fastbudget.hardware import Device

# Tokens of a forward pass from which on matrix products don't get faster; recipes rarely go above.
_MICRO_BATCH_TOKENS = 16384
# What parameters, activations and logits may take: the rest is workspace, buffers and fragmentation.
_USABLE_SHARE = 0.92
# From here on software of one's own divides layers and stages (GLM-130B, OPT-175B, Llama 3 405B, DeepSeek-V3).
_DIVIDED_PARAMS = 1e11


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a framework divides a model.

    Attributes:
        framework: its name in a layout.
        sharding: what it shards by default.
        model_parallel: it divides layers and stages, not only states.
    """

    framework: str
    sharding: str
    model_parallel: bool


MEGATRON = Style(framework="megatron", sharding="zero1", model_parallel=True)
HAND_WRITTEN = Style(framework="megatron", sharding="none", model_parallel=False)
DEEPSPEED = Style(framework="deepspeed", sharding="zero3", model_parallel=False)
SHARDED = Style(framework="pytorch", sharding="zero3", model_parallel=False)
REPLICATED = Style(framework="pytorch", sharding="none", model_parallel=False)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a row says of its layout; None is what it doesn't say."""

    devices: int
    seq_len: int
    precision: str
    tensor: int | None
    pipeline: int | None
    context: int | None
    experts: int | None
    micro_batch: int | None
    global_batch: int | None
    batch_told: bool
    fused_loss: bool
    sharding: str | None
    recompute: str | None
    lora: bool
    quantized: bool


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A layout's sizes."""

    tensor: int
    pipeline: int
    context: int
    sharding: str
    recompute: str
    micro_batch: int


def style_of(
    software: str, device: Device, *, params: int, pipeline: bool, sharding: str | None, replicated_fits: bool
) -> Style:
    """Return how the software of a row divides models.

    Args:
        software: framework and domain, in lower case.
        device: the accelerator.
        params: of the model.
        pipeline: the row names stages, which software of one's own does as Megatron-LM does.
        sharding: what the row says of it.
        replicated_fits: a device holds all states.
    """
    if device.key.startswith("tpu"):
        return SHARDED
    if re.search(r"megatron|nemo|neox|nanotron|mlperf", software) and not re.search(r"deepspeed n|tinygrad", software):
        return MEGATRON
    if "llm.c" in software:
        return HAND_WRITTEN
    if "deepspeed" in software:
        return DEEPSPEED
    if re.search(r"maxtext|jax|fsdp|titan|hsdp|composer", software):
        return SHARDED
    unsharded = sharding in ("none", "zero1") and not replicated_fits
    if pipeline or unsharded or (sharding is None and params > _DIVIDED_PARAMS):
        return MEGATRON
    return REPLICATED if replicated_fits else SHARDED


def choose(shape: TransformerShape, device: Device, given: Given, style: Style) -> Chosen | None:
    """Return the first layout that divides the batch and fits the device, else the one that needs least.

    Keeping activations comes before recomputing them, and fewer model-parallel devices first. Where layers are
    divided by habit, recomputing all of a layer is the last resort: this look at memory may be off by half.
    None where no layout divides the batch.
    """
    candidates = [(needed_bytes(shape, given, one), one) for one in _candidates(shape, given, style)]
    if not candidates:
        return None
    capacity = device.memory_bytes
    kept = [(needed, one) for needed, one in candidates if one.recompute != "full"]
    if fitting := [one for needed, one in kept if needed <= _USABLE_SHARE * capacity]:
        return fitting[0]
    if kept and style.model_parallel:
        needed, closest = min(kept, key=itemgetter(0))
        if needed <= 2 * capacity:
            return closest if given.recompute else replace(closest, recompute="selective")
    fitting = [one for needed, one in candidates if needed <= _USABLE_SHARE * capacity]
    return fitting[0] if fitting else min(candidates, key=itemgetter(0))[1]


def _candidates(shape: TransformerShape, given: Given, style: Style) -> Iterator[Chosen]:
    for tensor, pipeline, context, recompute in _options(shape, given, style):
        for micro in _micro_batches(given, given.devices // (tensor * pipeline * context), pipeline):
            yield Chosen(
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                sharding=given.sharding or style.sharding,
                recompute=recompute,
                micro_batch=micro,
            )


def _options(shape: TransformerShape, given: Given, style: Style) -> Iterator[tuple[int, int, int, str]]:
    heads = gcd(*(block.attention.heads for block in shape.all_blocks))
    tensors = (given.tensor,) if given.tensor else (1, 2, 4, 8) if _may_divide(given, style) else (1,)
    pipelines = (given.pipeline,) if given.pipeline else (1, 2, 4, 8, 16, 32) if style.model_parallel else (1,)
    contexts = (given.context,) if given.context else (1, 2, 4, 8, 16) if _may_divide(given, style) else (1,)
    recomputes = (given.recompute,) if given.recompute else ("none", "full")
    sizes = sorted(
        product(tensors, pipelines, contexts),
        # Within a node tensor parallelism, then stages, then sharing sequences.
        key=lambda size: (size[0] * size[1] * size[2], size[2], size[1]),
    )
    for recompute in recomputes:
        for tensor, pipeline, context in sizes:
            shared = tensor * pipeline * context
            if given.devices % shared or heads % tensor or shape.layers < pipeline or given.seq_len % context:
                continue
            if pipeline > 1 and not given.pipeline and not given.tensor and heads % 8 == 0 and tensor < 8:
                continue  # stages come once the node is used up
            yield tensor, pipeline, context, recompute


def _may_divide(given: Given, style: Style) -> bool:
    """Return whether layers are divided: by habit, or as there are more devices than sequences."""
    return style.model_parallel or (given.global_batch is not None and given.global_batch < given.devices)


def _micro_batches(given: Given, data: int, pipeline: int) -> list[int]:
    if given.micro_batch:
        sizes = [given.micro_batch]
    else:
        most = max(1, _MICRO_BATCH_TOKENS // given.seq_len)
        sizes = [2**power for power in range(most.bit_length() - 1, -1, -1)]
        if pipeline > 1:
            sizes = [1]  # smaller passes leave shorter bubbles
    if given.global_batch is None:
        return sizes
    if not given.batch_told:
        return [size for size in sizes if size * data <= given.global_batch]
    return [size for size in sizes if given.global_batch % (size * data) == 0]


def needed_bytes(shape: TransformerShape, given: Given, chosen: Chosen) -> float:
    """Return about what a rank needs: states by ZeRO's table, activations by Korthikanti et al. 2022.

    A quick look (arXiv:1910.02054 figure 1; arXiv:2205.05198 equation 2 without attention's scores): exact
    memory is the estimator's business.
    """
    shards = given.devices // (chosen.tensor * chosen.pipeline)
    routed = sum(block.expert_params(shape.hidden) for block in shape.all_blocks)
    divided = max(chosen.tensor, given.experts or (8 if routed else 1))
    params = ((shape.num_params - routed) / chosen.tensor + routed / divided) / chosen.pipeline
    if given.lora:
        weights = params * (0.55 if given.quantized else 2.0)
        states = weights / shards if chosen.sharding == "zero3" else weights
    elif given.precision in ("bf16", "fp16"):
        states = params * {"none": 8, "zero1": 4 + 4 / shards, "zero2": 2 + 6 / shards}.get(chosen.sharding, 8 / shards)
    else:
        states = params * {"none": 18, "zero1": 6 + 12 / shards, "zero2": 2 + 16 / shards}.get(
            chosen.sharding, 18 / shards
        )
    tokens = chosen.micro_batch * given.seq_len / chosen.context
    width = 2.0 if chosen.recompute == "full" else 34.0
    if given.precision in ("fp32", "tf32"):
        width *= 2
    hidden = tokens * shape.hidden
    activations = hidden * (width * shape.layers + 34.0) / chosen.tensor
    # A loss that isn't fused keeps float32 copies of the 16-bit logits and their gradients.
    logit_bytes = (4.0 if given.fused_loss else 10.0) if shape.has_head else 0.0
    logits = tokens * shape.vocab * logit_bytes / chosen.tensor
    return states + activations + logits
