"""Accelerators by name: peaks, memory, links and power, each figure with its source."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ..core.errors import InvalidInputError, did_you_mean, one_of

_FIGURES = (
    "fp32_flops_per_s",
    "tf32_flops_per_s",
    "fp16_flops_per_s",
    "bf16_flops_per_s",
    "fp8_flops_per_s",
    "fp4_flops_per_s",
    "measured_bf16_flops_per_s",
    "measured_fp8_flops_per_s",
    "memory_bytes",
    "memory_bytes_per_s",
    "link_bytes_per_s",
    "tdp_w",
)


@dataclass(frozen=True, kw_only=True)
class FigureSource:
    """Where a figure comes from.

    Attributes:
        source: the publication.
        verified: whether the figure was read there; else it is from memory.
    """

    source: str
    verified: bool


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator. Peaks are dense, per device; what is not known is None.

    Attributes:
        key: the name in the table, such as ``"h100-sxm"``.
        name: the vendor's name for it.
        architecture: compute capability (``"9.0"``) or LLVM target (``"gfx942"``).
        fp32_flops_per_s: vector float32; the other peaks are of the tensor cores, float32 accumulation.
        measured_bf16_flops_per_s: the fastest matrix product anybody published, below the peak.
        memory_bytes: what the driver reports where that is known, else the advertised 10^9 bytes.
        memory_bytes_per_s: peak of the device's memory.
        link_bytes_per_s: to the other devices of the node, one direction.
        link: what that link is.
        tdp_w: the power limit it ships with.
        sources: figure to where it comes from.
        aliases: other names that find it.
        note: what to know before comparing its figures.
    """

    key: str
    name: str
    architecture: str | None = None
    fp32_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    fp4_flops_per_s: float | None = None
    measured_bf16_flops_per_s: float | None = None
    measured_fp8_flops_per_s: float | None = None
    memory_bytes: int
    memory_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    link: str | None = None
    tdp_w: float | None = None
    sources: dict[str, FigureSource]
    aliases: tuple[str, ...] = ()
    note: str | None = None


def find_device(name: str | Device) -> Device:
    """Return the accelerator of that name.

    Case, spaces, underscores and the vendor's name don't matter. A name that fits several models finds the
    one most people mean: ``h100`` the SXM 80 GB, ``a100`` the SXM 80 GB, ``v100`` the SXM2 32 GB, ``h200``
    the SXM; ``a800`` finds the A100, which it equals but for its links.

    Raises:
        InvalidInputError: no such accelerator; the message proposes the closest name.
    """
    if isinstance(name, Device):
        return name
    wanted = _normalized(name)
    names = _names()
    # "rtx4090" and "a100 80gb" differ from the table's names in separators only.
    found = names.get(wanted) or _compact_names().get(wanted.replace("-", ""))
    if found is None:
        raise InvalidInputError(f"Unknown hardware {name!r}.{did_you_mean(wanted, names)} Known: {one_of(_devices())}.")
    return _devices()[found]


def known_devices() -> tuple[Device, ...]:
    """Return every accelerator of the table, in its order."""
    return tuple(_devices().values())


def _normalized(name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")
    return re.sub(r"^(nvidia|amd|intel|google)-(geforce-|tesla-|instinct-)?", "", words)


@cache
def _devices() -> dict[str, Device]:
    table = tomllib.loads(files(__package__).joinpath("hardware.toml").read_text())
    return {key: _device(key, entry, table["sources"]) for key, entry in table["devices"].items()}


@cache
def _names() -> dict[str, str]:
    names = {key: key for key in _devices()}
    for device in _devices().values():
        for alias in (*device.aliases, _normalized(device.name)):
            owner = names.setdefault(alias, device.key)
            assert owner == device.key, f"{alias} names both {owner} and {device.key}"
    return names


@cache
def _compact_names() -> dict[str, str]:
    return {name.replace("-", ""): key for name, key in _names().items()}


def _device(key: str, entry: dict[str, Any], sources: dict[str, str]) -> Device:
    figures = {name: entry[name] for name in _FIGURES if name in entry}
    return Device(
        key=key,
        name=entry["name"],
        architecture=entry.get("architecture"),
        link=entry.get("link"),
        aliases=tuple(entry.get("aliases", ())),
        note=entry.get("note"),
        sources={
            name: FigureSource(source=sources[figure["source"]], verified=figure["verified"])
            for name, figure in figures.items()
        },
        **{name: figure["value"] for name, figure in figures.items()},
    )
