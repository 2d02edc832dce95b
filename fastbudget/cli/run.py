"""`fastbudget run`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .outcomes import DONE, INTERRUPTED, OUT_OF_BUDGET, TERMINATED, print_json, reported

if TYPE_CHECKING:
    from ..workflow import RunRecord

HELP = """Plan, train inside a budget, evaluate with an interval, export and verify, and write a report.

WORK is an embedded workload (digits, pydocs) or a configuration file."""
EPILOG = "Example: fastbudget run digits --max-gpu-hours 0.01 --run-dir runs/short"

_CODES = {"completed": DONE, "budget": OUT_OF_BUDGET, "sigint": INTERRUPTED, "sigterm": TERMINATED}


def run_command(
    work: Annotated[str, typer.Argument(help="digits, pydocs, or a .yaml file", show_default=False)],
    run_dir: Annotated[Path | None, typer.Option(help="Where the run is kept.", show_default="runs/<name>")] = None,
    max_gpu_hours: Annotated[float | None, typer.Option(help="Device-hours; a CPU run holds one device.")] = None,
    max_wall_hours: Annotated[float | None, typer.Option(help="Hours on the clock.")] = None,
    max_usd: Annotated[float | None, typer.Option(help="Money; needs a price.")] = None,
    usd_per_device_hour: Annotated[float | None, typer.Option(help="Price of one device for an hour.")] = None,
    max_kwh: Annotated[float | None, typer.Option(help="Energy of the devices; needs their power.")] = None,
    watts_per_device: Annotated[float | None, typer.Option(help="Power of one device.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in RUN_DIR; its spending counts.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in RUN_DIR.")] = False,
    no_export: Annotated[bool, typer.Option("--no-export", help="Stop after the evaluation.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Run the main job.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 stopped by the budget, 130 SIGINT, 143 SIGTERM.
    """
    with reported(json):
        limits = {
            "gpu_hours": max_gpu_hours,
            "wall_hours": max_wall_hours,
            "usd": max_usd,
            "usd_per_device_hour": usd_per_device_hour,
            "kwh": max_kwh,
            "watts_per_device": watts_per_device,
        }
        if resume and overwrite:
            raise typer.BadParameter("--resume and --overwrite exclude each other.")
        from rich.console import Console

        from ..workflow import run
        from .progress import TerminalObserver

        with TerminalObserver(Console(stderr=True)) as observer:
            record = run(
                work,
                run_dir=run_dir,
                budget={name: value for name, value in limits.items() if value is not None},
                resume=resume,
                overwrite=overwrite,
                export_model=not no_export,
                observer=observer,
            )
        assert record.train is not None
        code = _CODES[record.train["stop_reason"]]
        if json:
            print_json(record.to_json() | {"exit_code": code})
        else:
            _print_tables(record)
    raise typer.Exit(code)


def _print_tables(record: RunRecord) -> None:
    from rich.console import Console

    from ..report import evaluation_table, export_table, spend_table

    console = Console()
    if record.train:
        console.print(spend_table(record.train))
    if record.evaluate:
        console.print(evaluation_table(record.evaluate))
    if record.export:
        console.print(export_table(record.export))
    console.print(f"Report: {record.report}", highlight=False, soft_wrap=True)
