"""The `fastbudget-export` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcomes import print_json, reported

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    help="Export the best checkpoint of a run, or a model factory, to ONNX, and verify it against the original.",
    epilog="Examples: fastbudget-export runs/digits --out digits-onnx   ·   "
    "fastbudget-export mymodel:build --inputs mymodel:example --out out",
)
def export_command(
    source: Annotated[
        str, typer.Argument(help="A run directory, or package.module:factory of a model.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Directory of the artifact.", show_default=False)],
    inputs: Annotated[
        str | None,
        typer.Option(
            help="package.module:factory of example inputs (a tensor or a tuple); needed with a model factory."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A fastbudget checkpoint directory to load into the factory's model.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Export and verify."""
    with reported(json):
        from ..workflow import export_factory, export_run

        if ":" in source and not Path(source).is_dir():
            if inputs is None:
                raise typer.BadParameter("a model factory needs --inputs, a factory of example inputs.")
            artifact = export_factory(source, inputs, out, checkpoint=checkpoint)
        else:
            artifact = export_run(Path(source), out)
        document = {"path": str(artifact.path), **artifact.manifest}
        if json:
            print_json(document)
            return
        check = artifact.manifest["verification"]
        typer.echo(f"{artifact.path}: largest difference {check['max_abs_diff']:.3g}, ", nl=False)
        typer.echo(
            f"same predictions {check['same_predictions']:.2%}, {check['latency_ratio']:.2f}x eager torch's speed"
        )


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
