from __future__ import annotations

import math

import numpy as np
import pytest

from fastbudget.budget import DurationEstimate


def fed(*seconds: float) -> DurationEstimate:
    estimate = DurationEstimate()
    for value in seconds:
        estimate.add(value)
    return estimate


def test_nothing_is_known_before_the_first_sample() -> None:
    assert fed().median_s() is None and fed().upper_s() == 0.0 and len(fed()) == 0


def test_the_median_is_geometric_and_the_upper_end_above_all_of_it() -> None:
    estimate = fed(1, 4)
    assert estimate.median_s() == pytest.approx(2)
    assert fed(3).upper_s() > 2 * 3
    assert fed(*[2.0] * 50).upper_s() > 2.0
    assert fed(1, 1, 1, 1).upper_s(4) > fed(1, 1, 1, 1).upper_s(2) > 1


def test_a_zero_duration_is_no_accident_but_the_next_may_be_interrupted() -> None:
    assert fed(0.0, 0.0, 0.0).upper_s() == pytest.approx(0.1)


def test_a_few_slow_steps_do_not_ask_for_many_times_their_length() -> None:
    assert fed(0.5).next_s() == 0.5 and fed(0.5, 0.01).next_s() == 0.5
    assert fed(0.5, 0.01, 0.01, 0.01, 0.01).next_s() == pytest.approx(0.11)  # the first, a warm-up, is forgotten


def test_only_the_latest_samples_count() -> None:
    estimate = fed(*[100.0] * 300, *[1.0] * 200)
    assert len(estimate) == 200
    assert estimate.median_s() == pytest.approx(1)


def test_many_samples_of_a_log_normal_find_its_end() -> None:
    generator = np.random.default_rng(0)
    estimate = fed(*generator.lognormal(math.log(3), 0.5, 200))
    assert estimate.upper_s(4) == pytest.approx(3 * math.exp(4 * 0.5), rel=0.35)


@pytest.mark.parametrize(
    ("samples", "sigma"),
    [(n, sigma) for n in (1, 2, 3, 4, 6, 12, 50) for sigma in (0.1, 0.3, 0.4, 0.5) if n > 1 or sigma <= 0.4],
)
def test_the_next_duration_is_below_the_upper_end(samples: int, sigma: float) -> None:
    """However few were seen, at most 1 in 200 is above (and the simulation's own error, three sigma of it).

    One sample says nothing about a spread wider than the prior's, 0.4.
    """
    generator = np.random.default_rng(samples)
    trials = 4000
    draws = generator.lognormal(0, sigma, (trials, samples + 1))
    above = sum(row[-1] > fed(*row[:-1]).upper_s() for row in draws)
    assert above / trials <= 0.005 + 3 * math.sqrt(0.005 / trials)


def test_more_samples_of_the_same_never_widen_it() -> None:
    ends = [fed(*[2.0] * count).upper_s() for count in range(1, 40)]
    assert ends == sorted(ends, reverse=True) and ends[-1] < ends[0]
