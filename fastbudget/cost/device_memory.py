"""From the bytes of tensors to the bytes of a GPU: the caching allocator, what lives beside it, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from ..hardware.devices import Device
from .allocator.allocator_settings import AllocatorConfig
from .allocator.allocator_simulation import simulate_allocator
from .data_parallel_memory import with_resident
from .device_overhead import CONTEXT_BYTES, communicator_bytes, cublas_workspace_bytes
from .trace.allocation_log import AllocationLog

# Kernels' own workspaces (cuDNN, split attention) and other versions of PyTorch are not in the trace.
MARGIN = 0.10


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """A step's peak on a GPU, in the four numbers that are never compared with each other.

    Attributes:
        allocated_bytes: blocks in use, as the allocator rounds them.
        active_bytes: the same, and blocks that wait for other streams.
        reserved_bytes: what the allocator takes from the device where memory is plenty.
        device_bytes: reserved bytes, CUDA context and communication buffers.
        capacity_bytes: the device's memory; None for a GPU without a name.
        fits: ``"yes"`` with ``MARGIN`` to spare; ``"no"`` when the step runs out of memory even if it needs less by
            the margin; else ``"at risk"``. None without a capacity.
    """

    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    device_bytes: int
    capacity_bytes: int | None
    fits: str | None


def on_device(
    log: AllocationLog, device: Device | None, *, num_devices: int = 1, allocator: AllocatorConfig | None = None
) -> DeviceMemory:
    """Replay a log through PyTorch's caching allocator.

    Args:
        log: One rank's.
        device: The GPU; None: any, without a verdict.
        num_devices: Ranks it communicates with, itself included.
        allocator: The allocator's options; None: PyTorch's defaults.
    """
    beside = CONTEXT_BYTES + (communicator_bytes() if num_devices > 1 else 0)
    log = with_resident(log, cublas_workspace_bytes(device), "buffer")
    replay = simulate_allocator(log.storage, log.delta_bytes, allocator)
    device_bytes = replay.peak_reserved_bytes + beside
    fits = None
    if device is not None:
        fits = "at risk"
        if device_bytes * (1 + MARGIN) <= device.memory_bytes:
            fits = "yes"
        elif not _runs_within(log, int((device.memory_bytes - beside) * (1 + MARGIN)), allocator):
            fits = "no"
    return DeviceMemory(
        allocated_bytes=replay.peak_allocated_bytes,
        active_bytes=replay.peak_active_bytes,
        reserved_bytes=replay.peak_reserved_bytes,
        device_bytes=device_bytes,
        capacity_bytes=None if device is None else device.memory_bytes,
        fits=fits,
    )


def _runs_within(log: AllocationLog, capacity_bytes: int, allocator: AllocatorConfig | None) -> bool:
    """Whether the step runs when the allocator must give back cached segments to stay below a capacity."""
    if capacity_bytes <= 0:
        return False
    return simulate_allocator(log.storage, log.delta_bytes, allocator, capacity_bytes=capacity_bytes).fits
