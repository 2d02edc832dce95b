"""Values by example, each example once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from .columns import Values, as_values
from .content_hash import HASH_BYTES, Hashes, as_keys


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleValues:
    """Values of different examples, sorted for look-up.

    Args:
        hashes: uint8 [n, 16], the examples' content hashes, each once.
        values: [n, …], in the same order.
    """

    hashes: Hashes
    values: Values

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, wanted: Hashes) -> npt.NDArray[np.int64]:
        """Return where each wanted example lies, int64 [m]; −1 for one that isn't there."""
        if len(self.hashes) == 0 or len(wanted) == 0:
            return np.full(len(wanted), -1, np.int64)
        keys, sought = self._keys, as_keys(wanted)
        # Searched by the high half; equal high halves of different examples are next to each other.
        position = np.searchsorted(keys["high"], sought["high"])
        found = np.full(len(wanted), -1, np.int64)
        for _ in range(self._longest_run):
            inside = np.minimum(position, len(keys) - 1)
            found = np.where((found < 0) & (keys[inside] == sought), inside, found)
            position = position + 1
        return found

    @cached_property
    def _keys(self) -> npt.NDArray[Any]:
        return as_keys(self.hashes)

    @cached_property
    def _longest_run(self) -> int:
        high, longest = self._keys["high"], 1
        while longest < len(high) and (high[longest:] == high[:-longest]).any():
            longest += 1
        return longest


def unique_examples(hashes: Hashes, values: Values, *, what: str, tolerance: float = 0.0) -> ExampleValues:
    """Return each example once, the value that came first.

    Raises:
        InvalidInputError: an example has values that differ by more than ``tolerance`` (relative above 1).
    """
    keys = as_keys(hashes)
    order = np.lexsort((keys["low"], keys["high"]))  # stable: what came first stays first
    ranked = keys[order]
    first = np.ones(len(order), bool)
    first[1:] = ranked[1:] != ranked[:-1]
    kept = order[first]
    if len(kept) < len(order):
        own = values[kept][np.cumsum(first) - 1]
        differing = _differ(own, values[order], tolerance)
        if differing.any():
            where = int(np.flatnonzero(differing)[0])
            raise conflict(what, hashes[order[where]].tobytes().hex(), own[where], values[order][where])
    return ExampleValues(hashes=hashes[kept].reshape(-1, HASH_BYTES), values=values[kept])


def merge_shards(shards: Sequence[tuple[Sequence[Any], Any]], *, tolerance: float = 0.0) -> tuple[list[Any], Values]:
    """Merge what several ranks computed, each example counted once.

    A distributed sampler repeats examples until every rank has as many; repeated ones have equal values and count once.

    Args:
        shards: One ``(ids, values)`` per rank: ids that can be compared and hashed, values [n, …] in the same order.
        tolerance: How far two values of one id may lie apart (relative above 1), for sums in another order.

    Returns:
        The ids in the order they first came, and their values.

    Raises:
        InvalidInputError: an id has values that differ, or a shard has not as many ids as values.
    """
    seen: dict[Any, Any] = {}
    for number, (ids, shard_values) in enumerate(shards):
        values = as_values(shard_values)
        if len(ids) != len(values):
            raise InvalidInputError(f"Shard {number} has {len(ids)} ids and {len(values)} values; give one id each.")
        plain_ids = ids.tolist() if hasattr(ids, "tolist") else ids
        for identity, value in zip(plain_ids, values, strict=True):
            if identity not in seen:
                seen[identity] = value
            elif _differ(_alone(seen[identity]), _alone(value), tolerance).any():
                raise conflict("Merged shards", repr(identity), seen[identity], value)
    merged = list(seen.values())
    return list(seen), np.stack(merged) if merged and isinstance(merged[0], np.ndarray) else as_values(merged)


def conflict(what: str, identity: str, one: Any, other: Any) -> InvalidInputError:
    """Return the error for one example with two values."""
    return InvalidInputError(
        f"{what}: example {identity} has different values, {one!s:.80} and {other!s:.80}. Each example must be scored "
        "the same way wherever it is: check that the model, its mode and the random seed are equal, and that ids are "
        "not reused."
    )


def _differ(a: Values, b: Values, tolerance: float) -> npt.NDArray[np.bool_]:
    """Return which of the values [n, …] differ, bool [n]."""
    if a.dtype == object or b.dtype == object:
        return np.array([not _same(x, y) for x, y in zip(a, b, strict=True)], bool)
    if a.shape != b.shape:
        return np.ones(len(a), bool)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(x - y) > tolerance * np.maximum(1.0, np.abs(x))
    apart |= np.isnan(x) != np.isnan(y)
    return np.asarray(apart.reshape(len(a), -1).any(axis=1))


def _alone(value: Any) -> Values:
    return value[None] if isinstance(value, np.ndarray) else as_values([value])


def _same(x: Any, y: Any) -> bool:
    return bool(np.array_equal(x, y)) if isinstance(x, np.ndarray) or isinstance(y, np.ndarray) else bool(x == y)
