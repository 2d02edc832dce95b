"""`fastbudget hardware`: the tables of accelerators and prices."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .outcomes import print_json, reported

if TYPE_CHECKING:
    from ..hardware import Device

HELP = "List the accelerators that estimates know: names they answer to, figures and prices, each with its source."
EPILOG = "Example: fastbudget hardware h100 --json"


def hardware_command(
    name: Annotated[str | None, typer.Argument(help="One accelerator; without it all are listed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Print the table."""
    with reported(json):
        from ..hardware import find_device, find_price, known_devices, known_prices

        devices = [find_device(name)] if name else list(known_devices())
        if json:
            offers: dict[str, list[dict[str, Any]]] = {device.key: [] for device in devices}
            for price in known_prices():
                if price.device in offers:
                    offers[price.device].append(price.to_json())
            print_json({"devices": [asdict(device) | {"prices": offers[device.key]} for device in devices]})
            return
        for device in devices:
            peak = device.bf16_flops_per_s or device.fp16_flops_per_s
            shown = f"{peak / 1e12:8.0f}" if peak else "       ?"
            typical = find_price(device)
            usd = f"{typical.usd_per_device_hour:6.2f} USD/h" if typical else "     ? USD/h"
            typer.echo(
                f"{device.key:22} {device.memory_bytes / 2**30:6.1f} GiB {shown} TFLOP/s 16-bit {usd}   {device.name}"
            )
            if name:
                _show_details(device)


def _show_details(device: Device) -> None:
    from ..hardware import known_prices

    typer.echo(f"  also: {', '.join(device.aliases)}")
    for figure, source in device.sources.items():
        mark = "verified" if source.verified else "from memory"
        typer.echo(f"  {figure:28} {getattr(device, figure):<16g} {source.source} ({mark})")
    for price in known_prices():
        if price.device == device.key:
            kind = "spot" if price.spot else "on demand"
            mark = "verified" if price.verified else "from memory"
            typer.echo(
                f"  {price.provider:12} {price.usd_per_device_hour:8.2f} USD/h {kind:9}  {price.date}  "
                f"{price.source} ({mark})"
            )
