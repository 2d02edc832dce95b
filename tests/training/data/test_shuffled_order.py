"""The keyed permutation: the cipher as written down, its uniformity, its speed."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fastbudget.training.data._native import permute_range

MASK = 2**64 - 1


def whole(size: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return permute_range(size, seed, epoch, 0, size)


def splitmix64(state: int) -> int:
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def reference(size: int, seed: int, epoch: int, index: int) -> int:
    """The cipher of csrc/include/fastbudget/tokens.h, word for word."""
    bits = max(10, (size - 1).bit_length())
    low_bits = bits // 2
    low_mask, high_mask = 2**low_bits - 1, 2 ** (bits - low_bits) - 1
    state = splitmix64(seed & MASK) ^ splitmix64(~epoch & MASK)
    keys = []
    for _ in range(8):
        keys.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) & MASK

    def value(half: int, key: int) -> int:
        z = ((half + key) * 0x9E3779B97F4A7C15) & MASK
        return (((z ^ z >> 32) * 0xD6E8FEB86659FD93) & MASK) >> 32

    while True:
        low, high = index & low_mask, index >> low_bits
        for turn in range(0, 8, 2):
            high ^= value(low, keys[turn]) & high_mask
            low ^= value(high, keys[turn + 1]) & low_mask
        index = high << low_bits | low
        if index < size:
            return index


@given(
    st.one_of(st.integers(1, 3000), st.integers(1, 2**62)), st.integers(-(2**63), 2**64 - 1), st.integers(0, 10**6),
    st.data(),
)  # fmt: skip
def test_the_order_is_the_cipher_as_written_down(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, size - 1))
    end = min(size, begin + 5)
    assert permute_range(size, seed, epoch, begin, end).tolist() == [
        reference(size, seed, epoch, index) for index in range(begin, end)
    ]


def test_the_order_never_changes_between_versions() -> None:
    assert permute_range(10**9, 0, 0, 0, 4).tolist() == [reference(10**9, 0, 0, index) for index in range(4)]
    assert permute_range(10**9, 0, 0, 0, 4).tolist() == GOLDEN


GOLDEN = [125947336, 208171351, 880887508, 297041705]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1023, 1024, 1025, 100_003])
def test_every_index_comes_once(size: int) -> None:
    for epoch in range(3):
        assert np.array_equal(np.sort(whole(size, 5, epoch)), np.arange(size))


def test_any_part_is_part_of_the_whole() -> None:
    expected = whole(5000, 3, 2)
    for begin, end in [(0, 1), (17, 400), (4999, 5000), (2500, 2500)]:
        assert np.array_equal(permute_range(5000, 3, 2, begin, end), expected[begin:end])


def test_threads_change_nothing() -> None:
    size = 300_000  # enough for several threads
    expected = np.concatenate([permute_range(size, 1, 0, at, at + 1000) for at in range(0, size, 1000)])
    assert np.array_equal(whole(size, 1), expected)


# -- uniformity: the seeds are fixed, so these can't fail by chance ---------------------------------------------------

LEAST_P = 1e-4


@pytest.mark.parametrize("vary", ["seed", "epoch"])
def test_all_orders_of_five_are_equally_frequent(vary: str) -> None:
    number = {order: place for place, order in enumerate(itertools.permutations(range(5)))}
    counts = np.zeros(120)
    for key in range(24_000):
        counts[number[tuple(whole(5, key, 7) if vary == "seed" else whole(5, 7, key))]] += 1
    assert stats.chisquare(counts).pvalue > LEAST_P


@pytest.mark.parametrize("size", [100, 1000, 1024])
def test_small_orders_look_like_shuffles(size: int) -> None:
    orders = np.stack([whole(size, seed) for seed in range(2000)])
    places = np.arange(size)
    # Which tenth of the places goes to which tenth of the values.
    table = np.zeros((10, 10))
    np.add.at(table, (np.broadcast_to(places * 10 // size, orders.shape), orders * 10 // size), 1)
    share = np.bincount(places * 10 // size) / size
    expected = np.outer(share, share) * orders.size
    statistic = ((table - expected) ** 2 / expected).sum() * size / (size - 1)
    assert stats.chi2(81).sf(statistic) > LEAST_P
    # Fixed points and pairs of neighbors that stay neighbors are Poisson with mean 1.
    for counts in ((orders == places).sum(1), (np.diff(orders, axis=1) == 1).sum(1)):
        observed = np.bincount(np.minimum(counts, 4), minlength=5)
        poisson = [*stats.poisson(1).pmf(range(4)), stats.poisson(1).sf(3)]
        assert stats.chisquare(observed, np.array(poisson) * len(orders)).pvalue > LEAST_P
    taus = [stats.kendalltau(places, order).statistic for order in orders[:400]]
    normal = np.sqrt(2 * (2 * size + 5) / (9 * size * (size - 1)))
    assert stats.kstest(np.array(taus) / normal, "norm").pvalue > LEAST_P


def test_a_large_order_looks_like_a_shuffle() -> None:
    size, count = 10**9, 1_000_000
    order, later, other = (
        permute_range(size, seed, epoch, 0, count) / size for seed, epoch in [(3, 0), (3, 1), (4, 0)]
    )
    for values in (order, np.diff(order) % 1, np.diff(order, 2) % 1, (order - later) % 1, (order - other) % 1):
        assert stats.kstest(values, "uniform").pvalue > LEAST_P
    pairs = np.bincount((order[:-1] * 100).astype(int) * 100 + (order[1:] * 100).astype(int), minlength=10_000)
    assert stats.chisquare(pairs).pvalue > LEAST_P


def test_ten_million_indices_a_second_at_a_billion_samples() -> None:
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        permute_range(10**9, 0, 0, 900_000_000, 900_100_000)
        best = min(best, time.perf_counter() - start)
    assert best < 100_000 / 10e6
