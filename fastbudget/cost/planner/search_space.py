"""The layouts that a plan looks at, and the rules that leave out what can't run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from ...core.errors import InvalidInputError, one_of
from ...hardware.devices import Device
from ..job.training_job import TrainingJob
from ..runtime.topology import topology_of
from ..transformer.training_layout import PRECISIONS, RECOMPUTES, SHARDINGS, TrainingLayout
from ..transformer.transformer_shape import TransformerShape

_WITHIN_NODE = (1, 2, 4, 8)
_STAGES = (1, 2, 4, 8, 16, 32)
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
# Sharing a sequence pays only for long ones.
_LONG_SEQUENCE = 16384
_CHOICES = {"shardings": SHARDINGS, "recomputes": RECOMPUTES, "precisions": PRECISIONS}
# What each framework's usual launcher can run.
_FRAMEWORK_LIMITS: dict[str, dict[str, tuple[int | str, ...]]] = {
    "deepspeed": dict.fromkeys(
        ("tensor_parallels", "pipeline_parallels", "virtual_pipelines", "context_parallels", "expert_parallels"), (1,)
    ),
    "megatron": {"shardings": ("none", "zero1")},
}


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The values that are combined. None: what :func:`default_space` chooses. Checked on construction.

    Attributes:
        device_counts: how many devices.
        tensor_parallels: see :class:`TrainingLayout`, as for all that follow.
        pipeline_parallels: see there.
        virtual_pipelines: see there.
        context_parallels: see there.
        expert_parallels: see there.
        shardings: see there.
        micro_batch_sizes: see there.
        recomputes: see there.
        precisions: see there.
    """

    device_counts: tuple[int, ...] | None = None
    tensor_parallels: tuple[int, ...] | None = None
    pipeline_parallels: tuple[int, ...] | None = None
    virtual_pipelines: tuple[int, ...] | None = None
    context_parallels: tuple[int, ...] | None = None
    expert_parallels: tuple[int, ...] | None = None
    shardings: tuple[str, ...] | None = None
    micro_batch_sizes: tuple[int, ...] | None = None
    recomputes: tuple[str, ...] | None = None
    precisions: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            values = getattr(self, field.name)
            if values is None:
                continue
            if isinstance(values, str | int):
                values = (values,)
            values = tuple(dict.fromkeys(values))
            object.__setattr__(self, field.name, values)
            if not values:
                raise InvalidInputError(f"{field.name} is empty: give at least one value, or None for the usual ones.")
            allowed = _CHOICES.get(field.name)
            for value in values:
                if allowed is not None and value not in allowed:
                    raise InvalidInputError(f"Unknown {field.name} {value!r}. Known: {one_of(allowed)}.")
                if allowed is None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                    raise InvalidInputError(f"{field.name} must be integers of at least 1, got {value!r}.")


def default_counts(device: Device, most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... devices of a node, then 1, 2, 3, 4, 6, 8, 12, ... whole nodes, and the most there may be."""
    node = topology_of(device).devices_per_node
    counts = {2**power for power in range(node.bit_length()) if 2**power <= min(node, most)}
    nodes = 1
    while nodes * node <= most:
        counts |= {times * node for times in (nodes, nodes * 3 // 2) if times * node <= most}
        nodes *= 2
    if most <= node or most % node == 0:
        counts.add(most)
    return tuple(sorted(counts))


def default_space(space: SearchSpace, job: TrainingJob, device: Device, framework: str) -> SearchSpace:
    """Fill in what the user left open.

    Tensor parallelism stays within a node, a pipeline has at most 32 stages with up to 4 chunks each, context
    parallelism is tried from 16,384 tokens on, expert parallelism with mixtures of experts. DeepSpeed runs data
    parallelism alone, Megatron shards optimizer states at most.
    """
    node = topology_of(device).devices_per_node
    experts = max(block.mlp.experts for block in job.shape.all_blocks)
    usual: dict[str, Any] = {
        "tensor_parallels": tuple(size for size in _WITHIN_NODE if size <= node),
        "pipeline_parallels": _STAGES,
        "virtual_pipelines": (1, 2, 4),
        "context_parallels": _WITHIN_NODE if job.seq_len >= _LONG_SEQUENCE else (1,),
        "expert_parallels": tuple(size for size in _WITHIN_NODE if size <= max(experts, 1)),
        "shardings": SHARDINGS,
        "micro_batch_sizes": _MICRO_BATCHES,
        "recomputes": RECOMPUTES,
        "precisions": (job.precision,),
    }
    usual |= _FRAMEWORK_LIMITS.get(framework, {})
    given: dict[str, Any] = {name: getattr(space, name) for name in usual}
    return SearchSpace(
        device_counts=space.device_counts,
        **{name: usual[name] if value is None else value for name, value in given.items()},
    )


def combinations(space: SearchSpace) -> int:
    """Return how many layouts a space holds for one number of devices and one precision, before the rules."""
    total = 1
    for field in fields(space):
        if field.name not in ("device_counts", "precisions"):
            total *= len(getattr(space, field.name))
    return total


def layouts(
    space: SearchSpace, job: TrainingJob, device: Device, count: int, precision: str, framework: str
) -> Iterator[TrainingLayout]:
    """Yield every layout of a complete space on ``count`` devices that can run, simpler ones first.

    The rules, each of which something in use enforces: sizes divide the devices, the heads, the experts and the
    batch; tensor parallelism stays within a node and divides the key-value heads or is a multiple of them
    (Megatron-LM, vLLM); a pipeline has no more chunks than layers and no fewer micro-batches than stages; with
    several chunks the stages divide the micro-batches (Megatron-LM's interleaved schedule); a ring of context
    parallelism takes two pieces of the sequence per device; one rank shards nothing.
    """
    shape = job.shape
    assert space.tensor_parallels and space.pipeline_parallels and space.virtual_pipelines and space.shardings
    assert space.context_parallels and space.expert_parallels and space.micro_batch_sizes and space.recomputes
    for pipeline, tensor, context in product(space.pipeline_parallels, space.tensor_parallels, space.context_parallels):
        shared = pipeline * tensor * context
        if count % shared or not _divides_model(shape, device, tensor, context, job.seq_len):
            continue
        ranks = count // shared
        shardings = [one for one in space.shardings if one == "none" or ranks * context > 1]
        for chunks, experts, size in product(space.virtual_pipelines, space.expert_parallels, space.micro_batch_sizes):
            if job.global_batch_size % (size * ranks) or not _divides_experts(shape, experts, count // pipeline):
                continue
            micro_batches = job.global_batch_size // (size * ranks)
            if not _runs_as_pipeline(shape.layers, pipeline, chunks, micro_batches):
                continue
            for sharding, recompute in product(shardings, space.recomputes):
                yield job.layout(
                    num_devices=count,
                    micro_batch_size=size,
                    tensor_parallel=tensor,
                    pipeline_parallel=pipeline,
                    virtual_pipeline=chunks,
                    context_parallel=context,
                    expert_parallel=experts,
                    sharding=sharding,
                    recompute=recompute,
                    precision=precision,
                    framework=framework,
                )


def _divides_model(shape: TransformerShape, device: Device, tensor: int, context: int, seq_len: int) -> bool:
    if context > 1 and seq_len % (2 * context):
        return False
    if tensor == 1:
        return True
    if tensor > topology_of(device).devices_per_node:
        return False
    attentions = [block.attention for block, _ in shape.block_counts]
    return all(
        one.heads % tensor == 0 and (one.kv_heads % tensor == 0 or tensor % one.kv_heads == 0) for one in attentions
    )


def _divides_experts(shape: TransformerShape, experts: int, stage_devices: int) -> bool:
    if experts == 1:
        return True
    counts = [block.mlp.experts for block, _ in shape.block_counts]
    return stage_devices % experts == 0 and any(counts) and all(count % experts == 0 for count in counts)


def _runs_as_pipeline(layers: int, pipeline: int, chunks: int, micro_batches: int) -> bool:
    if pipeline == 1:
        return chunks == 1
    if pipeline * chunks > layers or micro_batches < pipeline:
        return False
    return chunks == 1 or micro_batches % pipeline == 0


def why_nothing_runs(job: TrainingJob, space: SearchSpace, device: Device) -> str:
    """Return which rule leaves no layout at all, and what to do."""
    assert space.tensor_parallels and space.pipeline_parallels and space.micro_batch_sizes and space.device_counts
    assert space.context_parallels and space.expert_parallels
    shape = job.shape
    heads = ", ".join(str(block.attention.heads) for block, _ in shape.block_counts)
    kv_heads = ", ".join(str(block.attention.kv_heads) for block, _ in shape.block_counts)
    node = topology_of(device).devices_per_node
    if not any(_divides_model(shape, device, size, 1, job.seq_len) for size in space.tensor_parallels):
        return (
            f"tensor_parallels {space.tensor_parallels}: none divides the {heads} attention heads ({kv_heads} for keys "
            f"and values) within a node of {node} devices."
        )
    if min(space.pipeline_parallels) > shape.layers:
        return f"pipeline_parallels {space.pipeline_parallels}: all exceed the {shape.layers} layers."
    if not any(_divides_model(shape, device, 1, size, job.seq_len) for size in space.context_parallels):
        return f"context_parallels {space.context_parallels}: twice none of them divides seq_len ({job.seq_len})."
    if not any(_divides_experts(shape, size, size) for size in space.expert_parallels):
        counts = sorted({block.mlp.experts for block, _ in shape.block_counts})
        return f"expert_parallels {space.expert_parallels}: none divides the experts of the layers: {counts}."
    least = min(space.tensor_parallels) * min(space.pipeline_parallels) * min(space.context_parallels)
    if least > max(space.device_counts):
        return (
            f"The smallest tensor, pipeline and context parallelism take {least} devices, but there are at most "
            f"{max(space.device_counts)}: raise max_devices or allow smaller ones."
        )
    return (
        f"No layout divides a global_batch_size of {job.global_batch_size} on any of {space.device_counts} devices: it "
        f"must be a multiple of micro-batch {space.micro_batch_sizes} x data-parallel ranks, with as many "
        "micro-batches as pipeline stages. Change the batch, the device counts or the micro-batches."
    )
