"""A traced step's allocations as one of several data-parallel ranks makes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.errors import InvalidInputError, did_you_mean, one_of
from .trace.allocation_log import CATEGORIES, AllocationLog

SHARDINGS = ("none", "zero1", "zero2", "zero3")
OFFLOADS = ("none", "optimizer")

_SHARDED = {
    "none": (),
    "zero1": ("optimizer_state",),
    "zero2": ("optimizer_state", "gradient"),
    "zero3": ("optimizer_state", "gradient", "parameter"),
}
# The layer that computes and the next one, which is fetched meanwhile: FSDP2's default of one implicit prefetch.
_UNSHARDED_LAYERS = 2
# ZeRO-1 and -2 reduce gradients through a bucket that is filled while another is sent: DeepSpeed's
# reduce_bucket_size is 5e8 elements at most; PyTorch's ZeroRedundancyOptimizer and DDP use 25 MiB (bucket_cap_mb).
_BUCKET_BYTES = 2 * 25 * 2**20


def check_data_parallel(num_devices: int, sharding: str, offload: str) -> None:
    """Raise InvalidInputError unless the arguments make sense together."""
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
        raise InvalidInputError(f"num_devices must be a whole number of at least 1, got {num_devices!r}.")
    for name, given, allowed in (("sharding", sharding, SHARDINGS), ("offload", offload, OFFLOADS)):
        if given not in allowed:
            raise InvalidInputError(
                f"{name} must be one of {one_of(allowed)}, got {given!r}.{did_you_mean(given, allowed)}"
            )


def on_one_rank(
    log: AllocationLog, *, num_devices: int, sharding: str, offload: str = "none", half_weights: bool = False
) -> tuple[AllocationLog, tuple[str, ...]]:
    """Return the log of one rank, and notes on what was computed instead of traced.

    What is sharded shrinks to its share; buffers of the communication are added and stay. Sources: ZeRO (Rajbhandari
    et al. 2020, arXiv:1910.02054) for what each stage divides; PyTorch's DDP notes for the gradient buckets, which
    double the gradients unless ``gradient_as_bucket_view=True``; PyTorch's FSDP2 documentation for the prefetch.

    Args:
        log: Of a trace on one device.
        num_devices: Ranks.
        sharding: One of ``SHARDINGS``; ``"zero3"`` is fully sharded data parallel.
        offload: ``"optimizer"``: optimizer states are on the host.
        half_weights: Unsharded layers are gathered in 16 bits, as mixed precision does.
    """
    share = np.ones(len(CATEGORIES))
    notes: list[str] = []
    extra_bytes = 0
    if num_devices > 1:
        for category in _SHARDED[sharding]:
            share[CATEGORIES.index(category)] = 1 / num_devices
        if sharding == "none":
            extra_bytes = _category_bytes(log, "gradient")
            notes.append("DDP: gradient buckets as large as the gradients; gradient_as_bucket_view=True saves them.")
        elif sharding == "zero3":
            layer = _largest_layer_bytes(log)
            extra_bytes = int(_UNSHARDED_LAYERS * layer * (0.5 if half_weights else 1.0) + layer)
            notes.append("Fully sharded: two unsharded layers and one layer's unsharded gradients are added.")
        else:
            extra_bytes = _BUCKET_BYTES
            notes.append("Two gradient buckets of 25 MiB are added.")
        notes.append("Shares per rank are computed, not traced.")
    if offload == "optimizer":
        share[CATEGORIES.index("optimizer_state")] = 0.0
        notes.append("Optimizer states are on the host and cost no device memory.")
    size_bytes = np.ceil(log.size_bytes * share[log.category]).astype(np.int64)
    changed = replace(log, size_bytes=size_bytes, delta_bytes=np.sign(log.delta_bytes) * size_bytes[log.storage])
    return with_resident(changed, extra_bytes, "buffer"), tuple(notes)


def with_resident(log: AllocationLog, size_bytes: int, category: str) -> AllocationLog:
    """Return the log with a storage that is there from the first event to the last."""
    if size_bytes <= 0:
        return log
    number = len(log.size_bytes)
    return replace(
        log,
        storage=np.concatenate([[number], log.storage]).astype(np.int64),
        delta_bytes=np.concatenate([[size_bytes], log.delta_bytes]).astype(np.int64),
        phase=np.concatenate([[0], log.phase]).astype(np.uint8),
        size_bytes=np.append(log.size_bytes, size_bytes).astype(np.int64),
        category=np.append(log.category, CATEGORIES.index(category)).astype(np.uint8),
        birth_phase=np.append(log.birth_phase, 0).astype(np.uint8),
        module=np.append(log.module, 0).astype(np.int32),
        operation=np.append(log.operation, -1).astype(np.int32),
    )


def _category_bytes(log: AllocationLog, category: str) -> int:
    """The most bytes of one category alive at once."""
    mine = log.category[log.storage] == CATEGORIES.index(category)
    return int(np.cumsum(np.where(mine, log.delta_bytes, 0)).max(initial=0))


def _largest_layer_bytes(log: AllocationLog) -> int:
    """Bytes of parameters of the largest layer: a numbered block, or a module outside of any."""
    layers: dict[str, int] = {}
    for number in np.flatnonzero(log.category == CATEGORIES.index("parameter")):
        layer = _layer_of(log.modules[int(log.module[number])])
        layers[layer] = layers.get(layer, 0) + int(log.size_bytes[number])
    return max(layers.values(), default=0)


def _layer_of(module: str) -> str:
    """``model.layers.3.mlp.up`` is part of ``model.layers.3``; ``lm_head`` of itself."""
    parts = module.split(".")
    for index, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: index + 1])
    return module
