"""The simulated heap, by hand and against this system's ``malloc``."""

import platform
import subprocess
import sys

import pytest

from fastbudget.cost.allocator.host_heap import HostHeap

MIB = 1 << 20


def test_a_large_block_is_mapped_once_and_then_kept():
    heap = HostHeap()
    first = heap.replay([(0, MIB), (0, -MIB)])
    assert first >= MIB  # a mapping of its own, given back
    again = heap.replay([(1, MIB), (1, -MIB)])
    assert again >= MIB  # blocks of that size now come from the heap, which has to grow
    assert heap.replay([(2, MIB), (2, -MIB)]) == 0  # and is not trimmed for so little


def test_the_heap_is_trimmed_when_much_is_free_at_its_end():
    heap = HostHeap()
    heap.replay([(0, MIB), (0, -MIB)])
    many = [(number, MIB) for number in range(1, 9)]
    freed = [(number, -MIB) for number, _ in reversed(many)]
    heap.replay(many + freed)
    assert heap.replay(many) > 4 * MIB


def test_blocks_beyond_what_malloc_keeps_are_always_fresh():
    heap = HostHeap()
    for number in range(3):
        assert heap.replay([(number, 40 * MIB), (number, -40 * MIB)]) >= 40 * MIB


def test_free_blocks_are_joined():
    heap = HostHeap()
    heap.replay([(0, MIB), (0, -MIB)])
    heap.replay([(1, MIB // 2), (2, MIB // 2), (3, 4096)])
    heap.replay([(1, -1), (2, -1)])
    assert heap.replay([(4, MIB)]) == 0


SCRIPT = """
import resource
import torch
torch.set_num_threads(1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(40 << 20, dtype=torch.uint8).fill_(1)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * 4096
print(min(faults() for _ in range(4)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the simulation is of glibc's malloc")
def test_the_real_malloc_never_keeps_blocks_beyond_its_limit():
    answer = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert float(answer.stdout) == pytest.approx(40 * MIB, rel=0.02)
