"""Device memory that PyTorch's allocator doesn't see: the CUDA context and communication buffers."""

from __future__ import annotations

from ..hardware.devices import Device
from .transformer.training_layout import TrainingLayout

_MEBIBYTE = 2**20

# A context and the kernels that were loaded. nvidia-smi shows 450 to 800 MiB beside reserved memory where
# kernels load when first used (CUDA_MODULE_LOADING=LAZY, which PyTorch sets since 1.13), and 1,343 MB where all
# load at once (Hugging Face, "Model training anatomy", V100). From memory: not measured here.
CONTEXT_BYTES = 600 * _MEBIBYTE
# cuBLAS's workspace comes out of PyTorch's allocator: 8 blocks of 16 KiB and 2 of 4 MiB, or 32 MiB on Hopper
# and later. Source: getChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp.
_CUBLAS_BYTES = 2 * 4 * _MEBIBYTE + 8 * 16 * 1024
_CUBLAS_HOPPER_BYTES = 32 * _MEBIBYTE
# NCCL: a 4 MiB buffer per channel and direction (NCCL_BUFFSIZE), beside smaller ones for the low-latency
# protocols, with 16 channels and a ring; about half a gigabyte for the first communicator once all-gather,
# reduce-scatter and all-reduce have run. Source of the 4 MiB: NCCL documentation, environment variables.
_NCCL_BYTES = 16 * 2 * (4 + 4) * _MEBIBYTE


def cublas_workspace_bytes(device: Device | None) -> int:
    """Return the workspace that PyTorch allocates for matrix products."""
    hopper_or_later = device is not None and (device.architecture or "0").split(".")[0] in ("9", "10", "12")
    return _CUBLAS_HOPPER_BYTES if hopper_or_later else _CUBLAS_BYTES


def communicators(layout: TrainingLayout) -> int:
    """Return the groups of ranks that a rank communicates in."""
    sizes = (layout.data_parallel, layout.tensor_parallel, layout.pipeline_parallel)
    return sum(size > 1 for size in (*sizes, layout.context_parallel, layout.expert_parallel))


def communicator_bytes() -> int:
    """Return what one group of ranks takes for its buffers."""
    return _NCCL_BYTES


def overhead_bytes(layout: TrainingLayout) -> int:
    """Return device memory beside what the allocator reserves, on one rank."""
    return CONTEXT_BYTES + communicators(layout) * _NCCL_BYTES
