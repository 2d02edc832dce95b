"""The global random generators of Python, NumPy and torch: kept, set back, and keyed by sample."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch


def generator_states() -> dict[str, Any]:
    """Return the states of all global generators, as a checkpoint can hold them."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }


def set_generator_states(state: Mapping[str, Any]) -> None:
    """Set all global generators; warns when the number of GPUs is another, since their draws can't continue."""
    torch.set_rng_state(state["torch"])
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices == len(state["cuda"]):
        if devices:
            torch.cuda.set_rng_state_all(state["cuda"])
    else:
        warnings.warn(
            f"Random states of {len(state['cuda'])} GPUs were saved and {devices} are visible: what is drawn on GPUs "
            "(dropout) will differ from the uninterrupted run.",
            RuntimeWarning,
            stacklevel=3,
        )
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


@contextmanager
def generators_restored() -> Iterator[None]:
    """Undo, at the end of the block, what it drew from the global generators."""
    states = generator_states()
    try:
        yield
    finally:
        set_generator_states(states)


@contextmanager
def sample_generators(seed: int, epoch: int, number: int) -> Iterator[None]:
    """Seed the CPU generators of Python, NumPy and torch for one sample, and put them back afterwards.

    What is drawn inside depends on the key alone: not on the process, its workers, or what was drawn before.

    Args:
        seed: Of the run.
        epoch: From 0.
        number: The sample's number in the epoch's order, over all ranks.
    """
    key = struct.pack("<QQQ", seed % 2**64, epoch % 2**64, number % 2**64)
    for_python, for_torch, for_numpy = struct.unpack("<QqI", blake2b(key, digest_size=20).digest())
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    random.seed(for_python)
    torch.default_generator.manual_seed(for_torch)
    np.random.seed(for_numpy)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
