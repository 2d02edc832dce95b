"""`fastbudget hardware`: the table of accelerators."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .outcomes import print_json, reported

HELP = "List the accelerators that estimates know, with the names they answer to and the source of each figure."
EPILOG = "Example: fastbudget hardware h100 --json"


def hardware_command(
    name: Annotated[str | None, typer.Argument(help="One accelerator; without it all are listed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Print the table."""
    with reported(json):
        from ..hardware import find_device, known_devices

        devices = [find_device(name)] if name else list(known_devices())
        if json:
            print_json({"devices": [asdict(device) for device in devices]})
            return
        for device in devices:
            peak = device.bf16_flops_per_s or device.fp16_flops_per_s
            shown = f"{peak / 1e12:8.0f}" if peak else "       ?"
            typer.echo(f"{device.key:22} {device.memory_bytes / 2**30:6.1f} GiB {shown} TFLOP/s 16-bit   {device.name}")
            if name:
                typer.echo(f"  also: {', '.join(device.aliases)}")
                for figure, source in device.sources.items():
                    mark = "verified" if source.verified else "from memory"
                    typer.echo(f"  {figure:28} {getattr(device, figure):<16g} {source.source} ({mark})")
