"""How devices are put together: how many share a node, and what lies between nodes."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ...hardware.devices import Device

# Two x16 slots of the fourth generation: what a device without a known link is taken to have.
_UNKNOWN_LINK = 25e9


@dataclass(frozen=True, kw_only=True)
class Topology:
    """What surrounds a device.

    Attributes:
        devices_per_node: devices that reach each other over the fast link.
        link_bytes_per_s: of that link, one direction, per device.
        network_bytes_per_s: of the network between nodes, per device.
        multiprocessors: units that take one tile of a matrix product each; None: not known.
        assumed: words for what no datasheet gave.
    """

    devices_per_node: int
    link_bytes_per_s: float
    network_bytes_per_s: float
    multiprocessors: int | None
    assumed: tuple[str, ...] = ()


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__package__).joinpath("topology.toml").read_text())


def topology_of(device: Device) -> Topology:
    """Return the usual surroundings of a device."""
    return _topology(device.key, device.link_bytes_per_s)


@cache
def _topology(key: str, link: float | None) -> Topology:
    table = _table()
    known = max((name for name in table if key.startswith(name)), key=len, default="default")
    entry = table[known]
    assumed = []
    if known == "default":
        assumed.append(f"nodes of {entry['devices_per_node']} devices")
    link = link or entry.get("link_bytes_per_s")
    if link is None:
        link = _UNKNOWN_LINK
        assumed.append(f"a link of {link / 1e9:.0f} GB/s")
    return Topology(
        devices_per_node=entry["devices_per_node"],
        link_bytes_per_s=link,
        network_bytes_per_s=min(entry["network_bytes_per_s"], link),
        multiprocessors=entry.get("multiprocessors"),
        assumed=tuple(assumed),
    )
