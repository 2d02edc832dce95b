"""Work goes elsewhere; results come back in order, and no further ahead than asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from fastbudget.core.executor import ordered_results


def slower_when_even(item: int) -> int:
    time.sleep(0.02 * (item % 2 == 0))
    return item * item


def endless(taken: list[int]) -> Iterator[tuple[str, int]]:
    for number in range(10**9):
        taken.append(number)
        yield f"tag {number}", number


def test_results_come_in_order_and_items_are_taken_as_needed() -> None:
    for pool in (None, ThreadPoolExecutor(4)):
        taken: list[int] = []
        results = ordered_results(pool, slower_when_even, endless(taken), in_flight=4)
        found = [next(results) for _ in range(10)]
        results.close()
        assert found == [(f"tag {number}", number * number) for number in range(10)]
        assert len(taken) == (10 if pool is None else 14) - (pool is not None)


def test_processes() -> None:
    with ProcessPoolExecutor(2) as pool:
        items = [(None, number) for number in range(7)]
        assert [result for _, result in ordered_results(pool, slower_when_even, items)] == [n * n for n in range(7)]


def fail_at_three(item: int) -> int:
    if item == 3:
        raise ValueError("three")
    return item


def test_errors_arrive_at_their_place() -> None:
    with ThreadPoolExecutor(2) as pool:
        results = ordered_results(pool, fail_at_three, ((None, number) for number in range(9)))
        assert [next(results)[1] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(results)
