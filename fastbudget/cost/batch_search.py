"""The largest batch, or the smallest count of anything, that fits."""

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


def fewest(fits: Callable[[int], bool], guess: int, most: int) -> int:
    """Return the smallest count from 1 on that fits, ``most`` if none does; what fits with few fits with more.

    Looks near the guess first, then ever further away, then between.

    Args:
        fits: Whether a count suffices; asked as rarely as can be.
        guess: Where to begin.
        most: The largest count.
    """
    low, high = 0, most  # low doesn't fit; high does, or is all there is
    count, stride = max(1, min(guess, most)), 1
    if fits(count):
        while count > low and fits(count):
            high, count, stride = count, count - stride, 2 * stride
        low = max(low, count)
    else:
        while count < most and not fits(count):
            low, count, stride = count, count + stride, 2 * stride
        high = min(most, count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
