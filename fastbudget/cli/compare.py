"""`fastbudget compare`: a gate between two models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import InvalidInputError
from .evaluation_inputs import (
    Columns,
    existing_file,
    is_function,
    load_data,
    load_predict,
    read_store_record,
    record_of,
)
from .outcomes import REFUSED, print_json, reported

if TYPE_CHECKING:
    from ..evaluation import EvaluationRecord, Generalization, Verdict

HELP = """Compare a candidate with a baseline; exit with 4 when it is worse by more than the margin.

The baseline is a predictions file, or a record in a store, evals.db:3. So may be the candidate: then both are
complete, and the answer is exact for this data. Or the candidate is a model, module:predict with --data: it is
evaluated until the answer is certain, with error at most alpha, on as few examples as that takes."""
EPILOG = (
    "Examples: fastbudget compare main.csv branch.csv --margin 0.005   ·   "
    "fastbudget compare evals.db:3 mymodel:predict --data mymodel:test_set --require-approved"
)


def compare_command(
    baseline: Annotated[str, typer.Argument(help="A predictions file, or evals.db:ID.", show_default=False)],
    candidate: Annotated[
        str, typer.Argument(help="A predictions file, evals.db:ID, or module:predict.", show_default=False)
    ],
    metric: Annotated[
        str | None,
        typer.Option(help="A metric, or a column of scores; default: the baseline's first with values per example."),
    ] = None,
    margin: Annotated[float, typer.Option(help="How much worse is still accepted, in the metric's unit.")] = 0.0,
    alpha: Annotated[float, typer.Option(help="Error probability.")] = 0.05,
    references: Annotated[
        Path | None, typer.Option(help="A file with the references, matched by id, where predictions have none.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="module:data, for module:predict.")] = None,
    store: Annotated[Path | None, typer.Option(help="Where the candidate's results are found and kept.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Stop module:predict undecided after this time.")] = None,
    require_approved: Annotated[
        bool, typer.Option(help="Refuse, with 4, a baseline that isn't an approved record.")
    ] = False,
    id_column: Annotated[str | None, typer.Option("--id", help="The files' column of ids.")] = None,
    prediction_column: Annotated[str | None, typer.Option("--prediction", help="Their column of predictions.")] = None,
    reference_column: Annotated[str | None, typer.Option("--reference", help="Their column of references.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Print the verdict.

    Exit codes: 0 not worse than the margin, 2 wrong input, 4 worse, undecided, or not approved.
    """
    with reported(json):
        from ..evaluation import compare

        columns = Columns(id=id_column, prediction=prediction_column, reference=reference_column)
        stored = record_of(baseline)
        if require_approved:
            _check_approved(stored, as_json=json)
        chosen = [metric] if metric else None
        first = _record(baseline, columns, references, chosen)
        per_example = first.examples.scores if first.examples else {}
        name = metric or next(iter(per_example or first.values))
        beyond: Generalization | None = None
        if is_function(candidate):
            verdict = _run(compare, first, candidate, data, name, margin, alpha, store, max_seconds)
        else:
            second = _record(candidate, columns, references, chosen)
            verdict, beyond = _compare_records(first, second, name, margin, alpha)
        if json:
            print_json(verdict.to_json() | ({} if beyond is None else {"generalization": vars(beyond)}))
        else:
            _print_verdict(verdict, beyond)
        if not verdict.passed:
            raise typer.Exit(REFUSED)


def _check_approved(stored: tuple[Path, int] | None, *, as_json: bool) -> None:
    if stored is None:
        raise InvalidInputError("--require-approved needs a baseline from a store, such as evals.db:3.")
    status = read_store_record(*stored)[0].status
    if status != "approved":
        text = (
            f"The baseline, record {stored[1]}, is {status!r}, not approved: "
            f"`fastbudget store approve {stored[0]} {stored[1]} --by NAME`."
        )
        typer.echo(f"fastbudget: {text}", err=True)
        if as_json:
            print_json({"error": {"type": "NotApproved", "message": text}, "exit_code": REFUSED})
        raise typer.Exit(REFUSED)


def _record(source: str, columns: Columns, references: Path | None, metrics: list[str] | None) -> EvaluationRecord:
    from ..evaluation import evaluate_predictions

    if (stored := record_of(source)) is not None:
        record: EvaluationRecord = read_store_record(*stored)[1]
        return record
    return evaluate_predictions(columns.read(existing_file(source), references), metrics)


def _run(
    compare: Any,
    first: EvaluationRecord,
    candidate: str,
    data: str | None,
    metric: str,
    margin: float,
    alpha: float,
    store: Path | None,
    max_seconds: float | None,
) -> Verdict:
    from ..core.budget import Budget
    from .evaluation_progress import EvaluationBar

    limit = None if max_seconds is None else Budget(wall_hours=max_seconds / 3600)
    with EvaluationBar() as bar:
        verdict: Verdict = compare(
            first,
            load_predict(candidate),
            load_data(data),
            metric,
            margin,
            alpha,
            store=store,
            limit=limit,
            on_progress=bar,
        )
    return verdict


def _compare_records(
    first: EvaluationRecord, second: EvaluationRecord, metric: str, margin: float, alpha: float
) -> tuple[Verdict, Generalization]:
    from .. import metrics as metrics_room
    from ..evaluation import compare_records

    known = metric in metrics_room.list()
    higher = metrics_room.get(metric).higher_is_better if known else True
    return compare_records(first, second, metric, margin, alpha, higher_is_better=higher)


def _print_verdict(verdict: Verdict, beyond: Generalization | None) -> None:
    words = {
        "better": "better",
        "worse": "worse" if verdict.margin == 0 else f"worse by more than {verdict.margin:g}",
        "equal": "equal",
        "not_worse": f"not worse by more than {verdict.margin:g}",
        "undecided": "undecided",
    }
    low, high = verdict.interval
    bounds = "" if low == high else f"  ({1 - verdict.alpha:.0%}: {low:+.4f} to {high:+.4f})"
    typer.echo(f"{words[verdict.decision]}: {verdict.metric} {verdict.difference.mid:+.4f}{bounds}")
    typer.echo(f"{verdict.num_examples:,} of {verdict.population_size:,} examples: {verdict.reason}.")
    if beyond is not None:
        typer.echo(
            f"Beyond this data: {beyond.low:+.4f} to {beyond.high:+.4f} at {beyond.confidence:.0%}, "
            f"p = {beyond.p_value:.3g} ({beyond.method})."
        )
