"""torch's profiler, recording allocations of CPU tensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import ProfilerActivity, profile


@contextmanager
def profiled_memory() -> Iterator[Any]:
    """Record inside the block; the profiler's results are there after it."""
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _silent_stderr():
        profiler.start()
    try:
        yield profiler
    finally:
        with _silent_stderr():
            profiler.stop()


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Drop what native code writes to stderr: some builds of the profiler announce each start and stop there."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
