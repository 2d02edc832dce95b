"""`fastbudget eval`: score predictions, or a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .evaluation_inputs import Columns, existing_file, is_function, load_data, load_predict, parse_thresholds
from .outcomes import REFUSED, print_json, reported

if TYPE_CHECKING:
    from ..evaluation import EvaluationRecord

HELP = """Score a predictions file (CSV, TSV, JSON, JSON lines, Parquet, an lm-evaluation-harness log), or a model.

A model is module:predict, a function of a batch of inputs or a torch module, with --data module:data. With --store,
results per example are kept: an interrupted evaluation goes on where it was, and nothing is evaluated twice."""
EPILOG = (
    "Examples: fastbudget eval predictions.csv --metric accuracy --metric f1_macro --store evals.db   ·   "
    "fastbudget eval mymodel:predict --data mymodel:test_set --tier quick --threshold accuracy=0.9"
)


def eval_command(
    source: Annotated[str, typer.Argument(help="A predictions file, or module:predict.", show_default=False)],
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric, or a column of scores in the file; may be repeated.")
    ] = None,
    references: Annotated[
        Path | None, typer.Option(help="A file with the references, matched by id, where the predictions have none.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="module:data, for module:predict.")] = None,
    tier: Annotated[str, typer.Option(help="quick (400 examples), standard (2,000) or full.")] = "full",
    threshold: Annotated[
        list[str] | None, typer.Option(help="METRIC=NUMBER: stop once it is certain; exit 4 where the value is below.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="The evaluation store; made if it isn't there.")] = None,
    name: Annotated[str, typer.Option(help="The model's name in the store's list; its content identifies it.")] = "",
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    nan: Annotated[str, typer.Option(help="error, or wrong: class scores that are NaN count as wrong.")] = "error",
    batch_size: Annotated[int, typer.Option(help="For module:predict.")] = 256,
    id_column: Annotated[str | None, typer.Option("--id", help="The file's column of ids.")] = None,
    prediction_column: Annotated[str | None, typer.Option("--prediction", help="Its column of predictions.")] = None,
    reference_column: Annotated[str | None, typer.Option("--reference", help="Its column of references.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Print the metrics with their intervals.

    Exit codes: 0 done, 2 wrong input, 4 below a threshold.
    """
    with reported(json):
        from ..evaluation import evaluate, evaluate_predictions
        from .evaluation_progress import EvaluationBar

        thresholds = parse_thresholds(threshold or [])
        if is_function(source):
            with EvaluationBar() as bar:
                record = evaluate(
                    load_predict(source),
                    load_data(data),
                    metric or ["accuracy"],
                    tier,
                    store=store,
                    thresholds=thresholds,
                    confidence=confidence,
                    nan=nan,
                    name=name or source,
                    batch_size=batch_size,
                    on_progress=bar,
                )
        else:
            columns = Columns(id=id_column, prediction=prediction_column, reference=reference_column)
            record = evaluate_predictions(
                columns.read(existing_file(source), references),
                metric,
                tier=tier,
                store=store,
                thresholds=thresholds,
                confidence=confidence,
                nan=nan,
                name=name or Path(source).name,
            )
        if json:
            print_json(record.to_json())
        else:
            _print_table(record, thresholds)
        if "below" in record.decisions.values():
            raise typer.Exit(REFUSED)


def _print_table(record: EvaluationRecord, thresholds: dict[str, float]) -> None:
    from ..core.units import format_seconds

    width = max(map(len, record.values))
    for metric, value in record.values.items():
        typer.echo(
            f"{metric:{width}}  {value.value:.4f}  ({value.confidence:.0%}: {value.low:.4f} to {value.high:.4f}; "
            f"{value.method})"
        )
    for metric, decision in record.decisions.items():
        typer.echo(f"{metric:{width}}  {decision} {thresholds[metric]:g}")
    ended = {"complete": "all", "sample": f"a random sample, tier {record.tier!r}", "limit": "stopped by the limit"}
    ended["decided"] = "stopped because it is decided"
    typer.echo(
        f"{record.num_examples:,} of {record.population_size or record.num_examples:,} examples "
        f"({ended.get(record.stop_reason, record.stop_reason)}) in {format_seconds(record.seconds)}"
        + (f", {record.num_cached:,} of them from the store" if record.num_cached else "")
        + (f"; {record.num_nan:,} were NaN and counted as wrong" if record.num_nan else "")
        + (f"; {record.num_duplicates:,} repeated ones counted once" if record.num_duplicates else "")
        + "."
    )
    if record.store_id is not None:
        typer.echo(f"Record {record.store_id} in the store.")
