from __future__ import annotations

import dataclasses
import math

import pytest

import fastbudget as fb


@pytest.mark.parametrize("value", [0, -1, -0.5, math.nan, math.inf, True, "2", None])
@pytest.mark.parametrize("name", ["gpu_hours", "wall_hours", "usd", "kwh"])
def test_a_limit_must_be_a_finite_number_above_zero(name: str, value: object) -> None:
    with pytest.raises(fb.InvalidInputError, match="Budget") as caught:
        fb.Budget(**{name: value}, usd_per_device_hour=1.0)
    assert isinstance(caught.value, ValueError)


def test_money_needs_a_price_and_a_price_alone_is_no_limit() -> None:
    with pytest.raises(fb.InvalidInputError, match="usd_per_device_hour"):
        fb.Budget(usd=5)
    with pytest.raises(fb.InvalidInputError, match="at least one limit"):
        fb.Budget(usd_per_device_hour=2)


@pytest.mark.parametrize(
    ("limits", "devices", "seconds", "ruling"),
    [
        ({"gpu_hours": 2}, 1, 7200, "gpu_hours"),
        ({"gpu_hours": 2}, 8, 900, "gpu_hours"),
        ({"wall_hours": 0.5}, 8, 1800, "wall_hours"),
        ({"usd": 10, "usd_per_device_hour": 2.5}, 2, 7200, "usd"),
        ({"gpu_hours": 4, "wall_hours": 1, "usd": 6, "usd_per_device_hour": 2}, 1, 3600, "wall_hours"),
        ({"gpu_hours": 4, "wall_hours": 1, "usd": 6, "usd_per_device_hour": 2}, 8, 1350, "usd"),
        ({"kwh": 1.4, "watts_per_device": 700}, 1, 7200, "kwh"),
        ({"kwh": 1.4, "watts_per_device": 700, "gpu_hours": 1.9}, 8, 855, "gpu_hours"),
        ({"kwh": 1.4, "watts_per_device": 700, "wall_hours": 1}, 8, 900, "kwh"),
        ({"gpu_hours": 2, "wall_hours": 1, "usd": 6, "usd_per_device_hour": 2}, 8, 900, "gpu_hours"),
    ],
)
def test_the_tightest_limit_rules(limits: dict[str, float], devices: int, seconds: float, ruling: str) -> None:
    limit = fb.Budget(**limits).in_seconds(devices)
    assert limit.seconds == pytest.approx(seconds)
    assert limit.ruling_limit == ruling


def test_energy_needs_a_power_to_become_time() -> None:
    with pytest.raises(fb.InvalidInputError, match="kwh needs watts_per_device"):
        fb.Budget(kwh=1).in_seconds()
    assert fb.Budget(kwh=1, watts_per_device=500).kwh_for(3) == 1.5 and fb.Budget(gpu_hours=1).kwh_for(3) is None


def test_devices_must_be_held() -> None:
    with pytest.raises(fb.InvalidInputError, match="num_devices"):
        fb.Budget(gpu_hours=1).in_seconds(0)


def test_a_budget_is_a_value() -> None:
    budget = fb.Budget(gpu_hours=1, usd=3, usd_per_device_hour=2)
    assert budget == fb.Budget(gpu_hours=1, usd=3, usd_per_device_hour=2)
    given = {"gpu_hours": 1, "wall_hours": None, "usd": 3, "usd_per_device_hour": 2}
    assert budget.to_json() == given | {"kwh": None, "watts_per_device": None}
    assert fb.Budget(**budget.to_json()) == budget
    assert budget.usd_for(0.5) == 1.0
    assert fb.Budget(gpu_hours=1).usd_for(0.5) is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.gpu_hours = 2  # type: ignore[misc]
