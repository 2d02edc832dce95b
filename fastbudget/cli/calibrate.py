"""`fastbudget calibrate`: measure this machine, for estimates that know it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .outcomes import print_json, reported

if TYPE_CHECKING:
    from ..cost import Calibration

HELP = """Measure what this machine achieves, in at most a minute: products, attention, memory, calls, all-reduce.

The file is for `fastbudget estimate --calibration` and names no host, path or serial number: share it. On the CPU
torch's thread count is measured; set OMP_NUM_THREADS to measure another."""
EPILOG = "Example: fastbudget calibrate --out calibration.json --device cpu"


def calibrate_command(
    out: Annotated[Path, typer.Option(help="Where the calibration goes, JSON.")] = Path("calibration.json"),
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="the GPU if there is one")] = None,
    seconds: Annotated[float, typer.Option(help="Time limit; the measurement often needs half of it.")] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Measure, write, and show the main figures."""
    with reported(json):
        from ..core.errors import InvalidInputError

        if not out.parent.is_dir():
            raise InvalidInputError(f"--out {out} is in a folder that does not exist. Create it first.")
        from ..cost import calibrate

        if not json:
            typer.echo(f"Measuring for at most {seconds:g} s; leave the machine alone meanwhile.", err=True)
        found = calibrate(device=device, seconds=seconds)
        found.write(out)
        if json:
            print_json({"out": str(out), **found.to_json()})
        else:
            _show(found, out)


def _show(found: Calibration, out: Path) -> None:
    from ..core.units import format_count, format_seconds

    threads = f", {found.threads} thread{'s' if found.threads != 1 else ''}" if found.device == "cpu" else ""
    typer.echo(f"device              {found.processor}{threads} ({found.software})")
    for kind, rate in found.matrix_flops_per_s.items():
        typer.echo(f"products in {kind:7} {format_count(rate, 'FLOP/s')}")
    rates = (
        ("attention", found.attention_flops_per_s, "FLOP/s"),
        ("memory", found.memory_bytes_per_s, "B/s"),
        ("all-reduce", found.all_reduce_bytes_per_s, "B/s"),
    )
    for label, value, unit in rates:
        if value is not None:
            typer.echo(f"{label:19} {format_count(value, unit)}")
    if found.launch_s is not None:
        typer.echo(f"between operations  {format_seconds(found.launch_s)}")
    typer.echo(f"spread of repeats   {found.spread:.1%}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"written to {out}; use it: fastbudget estimate --calibration {out} ...")
