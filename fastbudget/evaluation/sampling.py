"""Random order and samples, decided by the examples' content and a seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Indices = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint8]


def draw_order(hashes: Hashes, seed: int) -> Indices:
    """Return a random permutation of the examples, int64 [N].

    Each example's place follows from a hash of its content and the seed, so that neither the order of the data set
    nor what was added to it changes which of two examples comes first.

    Args:
        hashes: uint8 [N, 16], content hashes.
        seed: Another seed is another permutation.
    """
    keys = np.array([xxhash.xxh3_64_intdigest(row, seed % 2**64) for row in _told_apart(hashes)], np.uint64)
    return np.argsort(keys, kind="stable")


def _told_apart(hashes: Hashes) -> list[bytes]:
    """Return one key per example, different for repeated content."""
    rows = [row.tobytes() for row in np.ascontiguousarray(hashes)]
    if len(set(rows)) == len(rows):
        return rows
    seen: dict[bytes, int] = {}
    keys = []
    for row in rows:
        repeat = seen.get(row, 0)
        seen[row] = repeat + 1
        keys.append(row + repeat.to_bytes(8, "little") if repeat else row)
    return keys


def canonical_order(hashes: Hashes) -> Indices:
    """Return the examples sorted by content, int64 [N]: an order that every copy of the data set has."""
    pairs = np.ascontiguousarray(hashes).view(">u8").astype(np.uint64).reshape(-1, 2)
    return np.lexsort((pairs[:, 1], pairs[:, 0]))


def stratified_sample(strata: Sequence[Any], order: Indices, size: int, seed: int) -> Indices:
    """Return a sample in proportion to the strata, int64 [size], in the random order.

    Systematic sampling of the examples sorted by stratum: each example has the same chance size / N, and each stratum
    gets its proportional share within one example, so that plain means need no weights. Source: W. G. Cochran,
    Sampling Techniques, 3rd ed. (1977), ch. 8.

    Args:
        strata: [N], the class of each example.
        order: A random permutation, from `draw_order`.
        size: At most N.
        seed: Of where the systematic sample starts.
    """
    names = [str(stratum) for stratum in strata]
    _, labels = np.unique(names, return_inverse=True)
    by_stratum = order[np.argsort(labels[order], kind="stable")]
    start = np.random.default_rng(seed).random()
    taken = by_stratum[((np.arange(size) + start) * (len(order) / size)).astype(np.int64)]
    chosen = np.zeros(len(order), bool)
    chosen[taken] = True
    return order[chosen[order]]
