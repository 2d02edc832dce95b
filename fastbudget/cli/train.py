"""`fastbudget train`: training alone, on one rank or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .outcomes import DONE, INTERRUPTED, OUT_OF_BUDGET, TERMINATED, print_json, reported

HELP = """Train inside a budget, on one rank or on several ranks of this machine.

WORK is a configuration file or an embedded workload (digits, pydocs), package.module:function of a function that
returns an fb.Trainer, or a Python script, which runs on each rank as under torchrun. ARGUMENTS are the script's; put --
before those that begin with a dash."""
EPILOG = (
    "Examples: fastbudget train digits --nproc 2 --run-dir runs/two   ·   "
    "fastbudget train script.py --nproc 2 -- --epochs 3"
)

_CODES = {"budget": OUT_OF_BUDGET, "sigint": INTERRUPTED, "sigterm": TERMINATED}


def train_command(
    work: Annotated[str, typer.Argument(help="A .yaml file, a workload, module:function, or a .py script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's arguments.", show_default=False)] = None,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Ranks to start on this machine.")] = 1,
    strategy: Annotated[str | None, typer.Option(help="ddp or fsdp2.", show_default="ddp")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run is kept.", show_default="runs/<name>")] = None,
    max_gpu_hours: Annotated[float | None, typer.Option(help="Device-hours; each rank holds one device.")] = None,
    max_wall_hours: Annotated[float | None, typer.Option(help="Hours on the clock.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run, on any number of ranks.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in RUN_DIR.")] = False,
    max_restarts: Annotated[int, typer.Option(min=0, help="Starts all ranks again when one fails, to resume.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Train.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 stopped by the budget, 130 SIGINT, 143 SIGTERM.
    """
    with reported(json):
        if resume and overwrite:
            raise typer.BadParameter("--resume and --overwrite exclude each other.")
        from ..workflow import TrainOptions, train

        limits = {"gpu_hours": max_gpu_hours, "wall_hours": max_wall_hours}
        found = train(
            work,
            TrainOptions(
                num_ranks=nproc,
                strategy=strategy,
                run_dir=None if run_dir is None else str(run_dir),
                budget={name: value for name, value in limits.items() if value is not None},
                resume=resume,
                overwrite=overwrite,
                max_restarts=max_restarts,
                arguments=arguments or (),
            ),
        )
        code = _CODES.get(found["stop_reason"], DONE)
        if json:
            print_json(found | {"exit_code": code})
        else:
            _print_outcome(found)
    raise typer.Exit(code)


def _print_outcome(found: dict[str, Any]) -> None:
    ranks = f"{found['ranks']} rank{'s' if found['ranks'] > 1 else ''}"
    if found["stop_reason"] is None:
        typer.echo(f"Ended on {ranks}.")
        return
    parts = [f"{found['stop_reason']} on {ranks}"]
    if "steps" in found:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in found["best_metrics"].items())
        parts += [f"{found['steps']:,} steps", f"best at step {found['best_step']:,}: {metrics}"]
        parts.append(f"{found['spend']['device_hours']:.4f} device-hours")
    typer.echo(" · ".join(parts))
    if "best_checkpoint" in found:
        typer.echo(f"Best checkpoint: {found['best_checkpoint']}")
