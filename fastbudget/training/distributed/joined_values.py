"""What each rank has of its own, kept as one value that is the same on all: a checkpoint's form of it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

_BY_RANK = "by_rank"


def join(values: Sequence[Any]) -> Any:
    """Return all ranks' values as one: the one, where it is the same on all."""
    first, *others = (pickle.dumps(value) for value in values)
    return {_BY_RANK: list(values)} if any(other != first for other in others) else values[0]


def num_parts(joined: Any) -> int | None:
    """Return how many ranks had a value of their own; None where it is one for any number."""
    return len(joined[_BY_RANK]) if isinstance(joined, Mapping) and _BY_RANK in joined else None


def own_part(joined: Any, rank: int) -> Any:
    """Return a rank's value; a rank that is new gets that of one that was there."""
    parts = num_parts(joined)
    return joined if parts is None else joined[_BY_RANK][rank % parts]
