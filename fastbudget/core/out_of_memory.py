"""Running out of memory: how it is told from other errors, and how what the failed call held is let go."""

from __future__ import annotations

import gc
import sys
import traceback

# torch.OutOfMemoryError is a RuntimeError that only newer versions raise everywhere; the CPU's allocator, cuBLAS, cuDNN
# and C++ raise plain RuntimeErrors. Texts as PyTorch 2.6 to 2.13 write them.
_TEXTS = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device's, or the host's, memory is exhausted."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ == "OutOfMemoryError" or any(text in str(error) for text in _TEXTS)


def release_memory(error: BaseException) -> str:
    """Let go of what a failed call holds, and return the error's text.

    An exception keeps the frames it passed through alive, and with them every tensor of the failed forward or backward
    pass. Call it, drop the exception, then try again with less.
    """
    text = f"{type(error).__name__}: {error}"
    pending, seen = [error], set()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        traceback.clear_frames(current.__traceback__)  # frames that still run, the caller's, are left alone
        current.__traceback__ = None
        pending += [linked for linked in (current.__cause__, current.__context__) if linked is not None]
        current.__cause__ = current.__context__ = None
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return text
