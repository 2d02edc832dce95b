"""The largest batch that fits."""

from __future__ import annotations

from collections.abc import Callable

# Beyond this, more samples in a micro-batch gain nothing.
_MOST_SAMPLES = 2**16


def largest_batch(fits: Callable[[int], bool], start: int) -> int:
    """Return the most samples that fit, 0 if not even one does; memory grows with the batch.

    Doubles or halves from ``start`` until the answer is enclosed, then bisects: both neighbors of the answer are
    tried, so it is exact for ``fits`` as given.

    Args:
        fits: Whether a batch of so many samples fits.
        start: Where to begin.
    """
    low, high = 0, max(1, start)
    while high <= _MOST_SAMPLES and fits(high):
        low, high = high, 2 * high
    if high > _MOST_SAMPLES:
        return low
    while low == 0 and high > 1:
        middle = high // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
