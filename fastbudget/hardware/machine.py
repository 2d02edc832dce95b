"""The CPU, read from the operating system."""

from __future__ import annotations

import os
import platform
from pathlib import Path

# What native code and onnxruntime dispatch on.
_NOTABLE = (
    "avx",
    "avx2",
    "f16c",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_int8",
)


def _cpuinfo(key: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def cpu_name() -> str:
    """Return the processor's model name, or its architecture where the system doesn't say."""
    return _cpuinfo("model name") or platform.machine()


def cpu_features() -> list[str]:
    """Return the vector instruction sets present that matter to numeric code."""
    present = set((_cpuinfo("flags") or "").split())
    return [name for name in _NOTABLE if name in present]


def usable_cpus() -> int:
    """Return how many CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Return the memory this process may use: the machine's, or its control group's limit where that is lower."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [installed]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # no control groups of that version; "max"
            continue
    return min(limits)
