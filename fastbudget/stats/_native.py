"""The one door of this room to the compiled module: sequential tests, and resampled sums."""

from __future__ import annotations

import numpy as np

from ..core.errors import not_compiled
from .validation import FloatArray, IntArray

try:
    from .. import _C
    from .._C import SequentialTest
except ImportError as error:
    raise not_compiled(error) from error

__all__ = ["SequentialTest", "bootstrap_indices", "bootstrap_sums", "picked_sums"]


def bootstrap_sums(
    rows: FloatArray, starts: IntArray, resamples: int, seed: int, *, first: int = 0, threads: int | None = None
) -> FloatArray:
    """Return the column sums [resamples, C] of rows [n, C] drawn with replacement, as many as each stratum has.

    Rows are sorted by stratum; stratum s holds the rows from ``starts[s]`` to ``starts[s + 1]``. Resample r is the
    same for any ``first`` and any number of threads.
    """
    return _C.bootstrap_sums(rows, starts, first, resamples, seed % 2**64, threads or 0)


def bootstrap_indices(n: int, starts: IntArray, resamples: int, seed: int, *, first: int = 0) -> IntArray:
    """Return the rows that `bootstrap_sums` adds up: int64 [resamples, n]."""
    return _C.bootstrap_indices(np.empty((n, 0)), starts, first, resamples, seed % 2**64, 0)


def picked_sums(rows: FloatArray, rounds: int, seed: int, *, threads: int | None = None) -> FloatArray:
    """Return the column sums [rounds, C] over the rows of [n, C] that a fair coin picks."""
    return _C.picked_sums(rows, 0, rounds, seed % 2**64, threads or 0)
