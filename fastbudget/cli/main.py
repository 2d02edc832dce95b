"""The `fastbudget` command."""

from __future__ import annotations

from typing import Annotated

import typer

from . import calibrate, compare, env, estimate, eval, hardware, ledger, plan, run, store, train

app = typer.Typer(
    name="fastbudget",
    help="Know what a model costs before training it, train it inside that budget, evaluate it with certainty, "
    "export it verified.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run", help=run.HELP, epilog=run.EPILOG)(run.run_command)
app.command("train", help=train.HELP, epilog=train.EPILOG)(train.train_command)
app.command("calibrate", help=calibrate.HELP, epilog=calibrate.EPILOG)(calibrate.calibrate_command)
app.command("estimate", help=estimate.HELP, epilog=estimate.EPILOG)(estimate.estimate_command)
app.command("plan", help=plan.HELP, epilog=plan.EPILOG)(plan.plan_command)
app.command("eval", help=eval.HELP, epilog=eval.EPILOG)(eval.eval_command)
app.command("compare", help=compare.HELP, epilog=compare.EPILOG)(compare.compare_command)
app.add_typer(store.app, name="store")
app.command("ledger", help=ledger.HELP, epilog=ledger.EPILOG)(ledger.ledger_command)
app.command("hardware", help=hardware.HELP, epilog=hardware.EPILOG)(hardware.hardware_command)
app.command("env", help=env.HELP, epilog=env.EPILOG)(env.env_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("fastbudget"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
