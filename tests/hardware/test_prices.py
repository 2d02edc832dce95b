"""Prices: the dated snapshot, and prices of the user's own."""

from datetime import date

import pytest

from fastbudget import ConfigurationError, InvalidInputError
from fastbudget.hardware import find_device, find_price, known_prices, known_providers, price_for, read_prices


def test_every_price_has_a_device_a_date_and_a_source():
    assert len(known_prices()) >= 50
    for price in known_prices():
        assert find_device(price.device).key == price.device
        assert price.date == date(2026, 11, 30) and price.source
        assert 0.1 < price.usd_per_device_hour < 20
        assert not (price.verified and "from memory" in price.source), price
    assert {"nebius", "lambda", "aws"} <= set(known_providers())


def test_prices_are_of_one_device():
    # 8 H100 for 23.6 USD, and 8 A100 for 14.32 (shared data, SkyPilot catalogs).
    eight = [price for price in known_prices() if price.instance == "gpu-h100-sxm_8gpu-128vcpu-1600gb"]
    assert {round(price.usd_per_device_hour, 4) for price in eight} == {2.95, 1.25}
    assert find_price("a100-80gb", provider="lambda").usd_per_device_hour == pytest.approx(1.79)


def test_the_median_of_the_providers_cheapest_is_taken_and_said():
    cheapest = {}
    for price in known_prices():
        if price.device == "h100-sxm" and not price.spot:
            cheapest[price.provider] = min(cheapest.get(price.provider, 1e9), price.usd_per_device_hour)
    found = find_price("h100")
    ranked = sorted(cheapest.values())
    assert found.usd_per_device_hour == ranked[(len(ranked) - 1) // 2]
    assert found.choice == f"median of {len(ranked)} providers"
    assert find_price("h100", provider="nebius").choice == "cheapest of nebius"
    assert find_price("h100", spot=True).usd_per_device_hour < found.usd_per_device_hour


def test_a_missing_price_is_none_never_zero():
    assert find_price("gaudi2") is None and price_for("gaudi2") is None
    assert find_price("a10", spot=True) is None
    assert find_price("gb300", provider="aws") is None


def test_a_price_of_ones_own():
    price = price_for("h100", 2)
    assert price.usd_per_device_hour == 2 and price.provider == "yours" and price.choice == "given"
    assert price_for("h100", "lambda").provider == "lambda"


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), True])
def test_a_price_is_a_finite_number_above_0(wrong):
    with pytest.raises(InvalidInputError, match="finite number of USD above 0"):
        price_for("h100", wrong)


def test_unknown_names_are_answered():
    with pytest.raises(InvalidInputError, match=r"Unknown provider 'nebuis'.*Did you mean 'nebius'"):
        find_price("h100", provider="nebuis")
    with pytest.raises(InvalidInputError, match="Unknown hardware"):
        find_price("h10")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.toml", "date = 2026-11-01\nh100 = 1.75\n[a100-80gb]\non_demand = 1.1\nspot = 0.45\n"),
        ("mine.yaml", "date: 2026-11-01\nh100: 1.75\na100-80gb: {on_demand: 1.1, spot: 0.45}\n"),
    ],
)
def test_a_file_of_prices(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert len(read_prices(path)) == 3
    price = price_for("a100-80gb", path, spot=True)
    assert price.usd_per_device_hour == 0.45 and price.date == date(2026, 11, 1) and price.provider == "yours"
    assert price_for("h100-sxm", str(path)).usd_per_device_hour == 1.75
    assert price_for("l4", path).provider != "yours"  # what the file lacks comes from the snapshot


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100 = -1\n", "above 0 per device and hour, got -1"),
        ("h1000 = 1\n", "Unknown hardware 'h1000'"),
        ("date = '2026-13-01'\nh100 = 1\n", "date must be a day such as 2026-11-30, got '2026-13-01'"),
        ("h100 = {weekly = 3}\n", "unknown key 'weekly'"),
        ("h100 = \n", "is not TOML"),
        ("h100 = 'cheap'\n", "finite number"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, text, expected):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=expected):
        read_prices(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml can't be read"):
        price_for("h100", tmp_path / "nowhere.toml")
