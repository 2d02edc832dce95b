"""What an hour of an accelerator costs: a dated snapshot with sources, and prices of the user's own."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from ..core.errors import ConfigurationError, InvalidInputError, did_you_mean, one_of
from .devices import Device, find_device

_YOURS = "yours"


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one device costs for an hour.

    Attributes:
        usd_per_device_hour: the price, of one device.
        device: key of the accelerator, as in :class:`Device`.
        provider: who asks it; ``"yours"`` for a price of the user's.
        instance: what is rented; None where the price is no instance's.
        region: where; None where the source doesn't say.
        spot: the device may be taken away at any time.
        date: the day of the snapshot that holds it; None for a price of the user's without one.
        source: where it was read.
        verified: whether it was read there; else it is from memory.
        choice: why this one of several: ``"only offer"``, ``"median of 5 providers"``, ``"cheapest of nebius"``,
            ``"given"``.
    """

    usd_per_device_hour: float
    device: str
    provider: str
    instance: str | None = None
    region: str | None = None
    spot: bool = False
    date: date | None = None
    source: str
    verified: bool
    choice: str = "only offer"

    def __post_init__(self) -> None:
        value = self.usd_per_device_hour
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise InvalidInputError(
                f"The price of {self.device} must be a finite number of USD above 0 per device and hour, got "
                f"{value!r}. Leave it out where none is known."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the fields, the date as text."""
        return asdict(self) | {"date": None if self.date is None else self.date.isoformat()}


def find_price(
    device: str | Device,
    *,
    spot: bool = False,
    provider: str | None = None,
    prices: str | PathLike[str] | None = None,
) -> Price | None:
    """Return what a device costs for an hour, or None where no price is known.

    Without a provider it is the median over the providers of their cheapest offers (of two, the lower): what a
    buyer pays who looks around a little. With one it is that provider's cheapest. ``choice`` says which.

    Args:
        device: the accelerator.
        spot: of devices that may be taken away.
        provider: one of :func:`known_providers`.
        prices: a file of the user's (see :func:`read_prices`); what it lacks comes from the snapshot.

    Raises:
        InvalidInputError: unknown hardware or provider.
        ConfigurationError: the file is not usable.
    """
    key = find_device(device).key
    if provider is not None and provider not in known_providers():
        raise InvalidInputError(
            f"Unknown provider {provider!r}.{did_you_mean(str(provider), known_providers())} "
            f"Known: {one_of(known_providers())}. A price of your own is a number or a file."
        )
    if prices is not None:
        own = [price for price in read_prices(prices) if price.device == key and price.spot == spot]
        if own:
            return own[0]
    cheapest: dict[str, Price] = {}
    for price in known_prices():
        if price.device == key and price.spot == spot and provider in (None, price.provider):
            best = cheapest.setdefault(price.provider, price)
            if price.usd_per_device_hour < best.usd_per_device_hour:
                cheapest[price.provider] = price
    if not cheapest:
        return None
    if provider is not None:
        return replace(cheapest[provider], choice=f"cheapest of {provider}")
    ranked = sorted(cheapest.values(), key=lambda price: price.usd_per_device_hour)
    middle = ranked[(len(ranked) - 1) // 2]
    return middle if len(ranked) == 1 else replace(middle, choice=f"median of {len(ranked)} providers")


def price_for(
    device: str | Device, price: float | str | PathLike[str] | None = None, *, spot: bool = False
) -> Price | None:
    """Return the price a user asked for in any of the ways there are.

    Args:
        device: the accelerator.
        price: USD of one device for an hour; a provider's name; a file of prices; None: the snapshot's median.
        spot: of devices that may be taken away.

    Raises:
        InvalidInputError: the number is not above 0, or the name is neither a provider's nor a file's.
        ConfigurationError: the file is not usable.
    """
    found = find_device(device)
    if price is None or isinstance(price, str | PathLike):
        is_file = price is not None and Path(price).suffix in (".toml", ".yaml", ".yml")
        if is_file:
            return find_price(found, spot=spot, prices=price)
        return find_price(found, spot=spot, provider=None if price is None else str(price))
    return Price(
        usd_per_device_hour=price,
        device=found.key,
        provider=_YOURS,
        spot=spot,
        source="given",
        verified=True,
        choice="given",
    )


def known_prices() -> tuple[Price, ...]:
    """Return every price of the snapshot, of one device each."""
    return _snapshot()


def known_providers() -> tuple[str, ...]:
    """Return the providers of the snapshot."""
    return tuple(sorted({price.provider for price in _snapshot()}))


def read_prices(path: str | PathLike[str]) -> tuple[Price, ...]:
    """Read prices of the user's own from a TOML or YAML file.

    A key is an accelerator, its value USD per device and hour, or a table of ``on_demand`` and ``spot``. The
    key ``date`` may say when they held::

        date = 2026-11-01
        h100-sxm = 1.75
        a100-80gb = { on_demand = 1.10, spot = 0.45 }

    Raises:
        ConfigurationError: there is no such file, or a line of it makes no sense.
    """
    source = Path(path)
    values = _values(source)
    day = _day(values.get("date"), source)
    return tuple(price for key, value in values.items() if key != "date" for price in _own(key, value, day, source))


def _own(key: str, value: Any, day: date | None, source: Path) -> list[Price]:
    kinds = value if isinstance(value, Mapping) else {"on_demand": value}
    if unknown := set(kinds) - {"on_demand", "spot"}:
        raise ConfigurationError(f"{source}: {key} has the unknown key {min(unknown)!r}. Known: 'on_demand', 'spot'.")
    try:
        return [
            Price(
                usd_per_device_hour=usd,
                device=find_device(key).key,
                provider=_YOURS,
                spot=kind == "spot",
                date=day,
                source=source.name,
                verified=True,
                choice="given",
            )
            for kind, usd in kinds.items()
        ]
    except InvalidInputError as error:
        raise ConfigurationError(f"{source}: {error}") from None


def _values(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror}.") from None
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        import yaml

        values = yaml.safe_load(text)
    except Exception as error:  # the two parsers share no error type
        raise ConfigurationError(f"{path} is not {'TOML' if path.suffix == '.toml' else 'YAML'}: {error}") from None
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{path} must map accelerators to USD per device and hour.")
    return values


def _day(value: Any, source: Path) -> date | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise ConfigurationError(f"{source}: date must be a day such as 2026-11-30, got {value!r}.") from None


@cache
def _snapshot() -> tuple[Price, ...]:
    table = tomllib.loads(files(__package__).joinpath("prices.toml").read_text())
    return tuple(
        Price(
            usd_per_device_hour=offer[column] / offer["devices"],
            device=offer["device"],
            provider=offer["provider"],
            instance=offer.get("instance"),
            region=offer.get("region"),
            spot=column.startswith("spot"),
            date=table["snapshot"],
            source=table["sources"][offer["source"]],
            verified=offer["verified"],
        )
        for offer in table["offers"]
        for column in ("usd_per_hour", "spot_usd_per_hour")
        if column in offer
    )
