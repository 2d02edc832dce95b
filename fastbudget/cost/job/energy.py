"""Electricity of a job and the CO2 it stands for."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from ...core.errors import InvalidInputError, did_you_mean, one_of
from ...core.interval import Interval
from ...hardware.devices import Device
from .interval_sums import exactly, independent_product
from .job_conditions import JobConditions

# A node of eight H100 (700 W each) drew 8.4 kW at most, with its devices near full utilization (arXiv:2412.08602):
# everything beside them takes half of their power. Compute-intensive training drew 76% of the node's rated 10.2 kW
# (arXiv:2506.14551), so 0.92 of the devices' limit.
HOST_SHARE = Interval(0.3, 0.5, 0.8)
_BUSY_SHARE = 0.76 * 10.2 / 8.4
# A device that mostly waits still draws about half of its limit: an assumption.
_WAITING_SHARE = 0.5
_BUSY_MFU = 0.4

# Hyperscale data centers, as LLaMA's authors count (arXiv:2302.13971, section 6); the industry's mean, Uptime
# Institute's survey of 2024; between them what a cloud region usually has.
PUE = Interval(1.1, 1.25, 1.56)


def power_share(mfu: float) -> Interval:
    """Return a device's power as a share of its limit, by how busy its arithmetic is."""
    busy = min(mfu / _BUSY_MFU, 1.0)
    mid = _WAITING_SHARE + (_BUSY_SHARE - _WAITING_SHARE) * busy
    return Interval(0.8 * mid, mid, min(1.1 * mid, 1.0))


def energy_kwh(device: Device, device_hours: Interval, mfu: float, conditions: JobConditions) -> Interval | None:
    """Return the kilowatt-hours of devices, hosts and data center, or None where the device's power is not known."""
    if device.tdp_w is None:
        return None
    share = power_share(mfu) if conditions.power_share is None else exactly(conditions.power_share)
    host = HOST_SHARE if conditions.host_share is None else exactly(conditions.host_share)
    return independent_product(
        device_hours.scaled(device.tdp_w / 1000),
        share,
        Interval(1 + host.low, 1 + host.mid, 1 + host.high),
        PUE if conditions.pue is None else exactly(conditions.pue),
    )


def grid_kg_per_kwh(conditions: JobConditions) -> float:
    """Return the CO2e of a kilowatt-hour.

    Raises:
        InvalidInputError: there is no such region.
    """
    if conditions.grid_kg_per_kwh is not None:
        return conditions.grid_kg_per_kwh
    grids = _table()["grids"]
    region = conditions.region.lower()
    if region not in grids:
        raise InvalidInputError(
            f"Unknown region {conditions.region!r}.{did_you_mean(region, grids)} Known: {one_of(grids)}. "
            "Or give grid_kg_per_kwh."
        )
    return float(grids[region]["kg_per_kwh"])


def grid_source(region: str) -> str:
    """Return where a region's figure comes from."""
    table = _table()
    return str(table["sources"][table["grids"][region.lower()]["source"]])


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("grids.toml").read_text())
