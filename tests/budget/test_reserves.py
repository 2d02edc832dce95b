from __future__ import annotations

import math

import numpy as np
import pytest

from fastbudget.budget import DurationEstimate
from fastbudget.budget.reserves import LogNormal, least_waste_s, sum_of


def fed(*seconds: float, usual_sigma: float = 0.3) -> DurationEstimate:
    estimate = DurationEstimate(usual_sigma)
    for value in seconds:
        estimate.add(value)
    return estimate


def test_nothing_is_known_before_the_first_sample() -> None:
    assert fed().median_s() is None and fed().next_one() is None and fed().upper_s() == 0.0 and len(fed()) == 0


def test_the_median_is_geometric_and_the_upper_end_above_it() -> None:
    assert fed(1, 4).median_s() == pytest.approx(2)
    assert fed(3).upper_s(2) == pytest.approx(3 * math.exp(2 * 0.3 * math.sqrt(2)))
    assert fed(1, 1, 1, 1).upper_s(4) > fed(1, 1, 1, 1).upper_s(2) > 1


def test_the_first_sample_warms_up_and_is_forgotten() -> None:
    assert fed(50, 1, 1).median_s() == pytest.approx(50 ** (1 / 3))
    assert fed(50, 1, 1, 1).median_s() == pytest.approx(1)


def test_only_the_latest_samples_count() -> None:
    estimate = fed(*[100.0] * 300, *[1.0] * 200)
    assert len(estimate) == 200 and estimate.median_s() == pytest.approx(1)
    assert estimate.upper_s(2) == pytest.approx(1, rel=0.1), "the running sums drifted"


def test_running_sums_equal_the_slow_reference() -> None:
    generator = np.random.default_rng(0)
    seconds = generator.lognormal(1, 0.7, 1000)
    estimate = fed(*seconds, usual_sigma=0.2)
    logs = np.log(seconds[-200:])
    mu = logs.mean()
    variance = (0.2**2 + ((logs - mu) ** 2).sum()) / 200 * (1 + 1 / 200)
    known = estimate.next_one()
    assert known is not None
    assert (known.mu, known.sigma) == (pytest.approx(mu), pytest.approx(math.sqrt(variance)))


def test_zero_durations_are_no_accident() -> None:
    assert fed(0.0, 0.0, 0.0).upper_s() < 1e-8


def test_more_samples_of_the_same_narrow_it() -> None:
    ends = [fed(*[2.0] * count).upper_s() for count in range(1, 40)]
    assert ends == sorted(ends, reverse=True) and ends[-1] < 2.3 < ends[0]


@pytest.mark.parametrize("sigma", [0.1, 0.3])
@pytest.mark.parametrize("samples", [3, 6, 12, 50])
def test_two_sigma_are_exceeded_as_often_as_they_should_be(samples: int, sigma: float) -> None:
    """Of a normal 2.3%; with a few samples of an unknown spread, up to 8%."""
    generator = np.random.default_rng(samples)
    trials = 3000
    draws = generator.lognormal(0, sigma, (trials, samples + 1))
    above = sum(row[-1] > fed(*row[:-1]).upper_s(2) for row in draws) / trials
    assert above <= (0.08 if samples < 12 else 0.05)
    if samples >= 12 and sigma >= 0.3:  # otherwise the prior widens it
        assert above >= 0.01


def test_a_sum_has_the_moments_of_its_parts_and_a_lower_end_than_their_ends() -> None:
    generator = np.random.default_rng(0)
    parts = [(LogNormal(0.0, 0.3), 1.0), (LogNormal(1.0, 0.2), 2.0), (None, 5.0), (LogNormal(3.0, 1.0), 0.0)]
    total = sum_of(parts)
    assert total is not None
    draws = generator.lognormal(0, 0.3, 200_000) + 2 * generator.lognormal(1, 0.2, 200_000)
    assert math.exp(total.mu + total.sigma**2 / 2) == pytest.approx(draws.mean(), rel=0.01)
    assert total.quantile_s(2.326) == pytest.approx(np.quantile(draws, 0.99), rel=0.02)
    assert total.quantile_s(3) < math.exp(3 * 0.3) + 2 * math.exp(1 + 3 * 0.2)
    assert sum_of([]) is None and sum_of([(None, 1.0)]) is None


@pytest.mark.parametrize(("sigma", "at_stake"), [(0.05, 0.0), (0.1, 1.0), (0.3, 3.0), (0.3, 1000.0)])
def test_the_reserve_wastes_least(sigma: float, at_stake: float) -> None:
    """Against the waste itself, averaged over draws, at a grid of reserves."""
    finish = LogNormal(0.0, sigma)
    draws = np.random.default_rng(0).lognormal(0, sigma, 200_000)

    def waste(kept: float) -> float:
        return float(np.where(draws <= kept, kept - draws, kept + at_stake).mean())

    grid = [finish.quantile_s(z) for z in np.linspace(0, 4, 161)]
    assert waste(least_waste_s(finish, at_stake)) <= min(map(waste, grid)) * 1.02


def test_the_more_is_at_stake_the_more_is_kept() -> None:
    finish = LogNormal(0.0, 0.3)
    kept = [least_waste_s(finish, stake) for stake in (0, 1, 10, 100, 1e6)]
    assert kept == sorted(kept) and 1 <= kept[0] < 1.5 and kept[-1] <= math.exp(4 * 0.3) + 1e-6
