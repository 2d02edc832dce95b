"""`fastbudget store`: what has been evaluated."""

from __future__ import annotations

import csv
import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import InvalidInputError
from .outcomes import print_json, reported

if TYPE_CHECKING:
    from ..store import EvaluationStore, StoredRecord

app = typer.Typer(
    help="Look into an evaluation store: list, show and export records, and sign them off.",
    epilog="Example: fastbudget store ls evals.db",
    no_args_is_help=True,
)
_Path = Annotated[Path, typer.Argument(help="The store's file.", show_default=False)]
_Id = Annotated[int, typer.Argument(help="The record's number, from `ls`.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def _open(path: Path) -> EvaluationStore:
    from ..store import EvaluationStore

    if not path.is_file():
        raise InvalidInputError(f"There is no file {path}; `fastbudget eval … --store {path}` makes one.")
    return EvaluationStore(path)


@app.command("ls", help="List the records.", epilog="Example: fastbudget store ls evals.db --name resnet50")
def list_command(
    path: _Path,
    name: Annotated[str | None, typer.Option(help="Only the records of this name.")] = None,
    json: _Json = False,
) -> None:
    """List the records, oldest first."""
    with reported(json), _open(path) as store:
        records = store.records(name=name)
        if json:
            print_json({"path": str(path), "records": [record.to_json() for record in records]})
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0))
        for title in ("id", "name", "values", "examples", "tier", "status", "made (UTC)", "model", "data"):
            table.add_column(title, justify="right" if title in ("id", "examples") else "left")
        for record in records:
            table.add_row(
                str(record.id),
                record.name,
                _values(record),
                f"{record.num_examples:,} of {record.population_size:,}",
                str(record.document.get("tier", "")),
                record.status,
                record.created_at[:19].replace("T", " "),
                record.model_hash[:8],
                record.data_hash[:8],
            )
        Console().print(table)


@app.command(
    "show", help="Show one record, its sign-offs included.", epilog="Example: fastbudget store show evals.db 3"
)
def show_command(path: _Path, record_id: _Id, json: _Json = False) -> None:
    """Show one record."""
    with reported(json), _open(path) as store:
        record = store.record(record_id)
        if json:
            print_json(record.to_json())
            return
        typer.echo(f"record {record.id}: {record.name or '(no name)'}, {record.status}")
        typer.echo(f"  {_values(record)}")
        typer.echo(f"  {record.num_examples:,} of {record.population_size:,} examples, made {record.created_at}")
        typer.echo(f"  model {record.model_hash}")
        typer.echo(f"  data  {record.data_hash}")
        for name, value in record.document.items():
            if name not in record.document.get("metrics", ()) and not isinstance(value, dict | list):
                typer.echo(f"  {name}: {value}")
        for entry in record.sign_offs:
            typer.echo(f"  {entry.signed_at}  {entry.status} by {entry.by}{': ' + entry.note if entry.note else ''}")


@app.command(
    "export",
    help="Write a record's results per example: CSV, or JSON lines by the file's ending.",
    epilog="Example: fastbudget store export evals.db 3 --out results.csv",
)
def export_command(
    path: _Path,
    record_id: _Id,
    out: Annotated[Path, typer.Option(help="The file to write: .csv or .jsonl.", show_default=False)],
    json: _Json = False,
) -> None:
    """Write one row per example: content hash, scores, margin."""
    with reported(json), _open(path) as store:
        from ..evaluation import read_record

        if out.suffix not in (".csv", ".jsonl"):
            raise InvalidInputError(f"--out must end in .csv or .jsonl, got {out}.")
        examples = read_record(store, record_id).examples
        assert examples is not None
        columns: dict[str, list[Any]] = {"example": [row.tobytes().hex() for row in examples.hashes]}
        columns |= {name: scores.tolist() for name, scores in examples.scores.items()}
        if examples.margins is not None:
            columns["margin"] = examples.margins.tolist()
        try:
            _write(out, columns)
        except OSError as error:
            raise InvalidInputError(f"--out: {out} can't be written: {error.strerror}.") from error
        if json:
            print_json({"path": str(out), "examples": len(examples), "columns": list(columns)})
        else:
            typer.echo(f"{out}: {len(examples):,} examples, columns {', '.join(columns)}")


@app.command(
    "approve",
    help="Sign a record off: from draft to reviewed, from reviewed to approved, or back to draft.",
    epilog="Example: fastbudget store approve evals.db 3 --by 'Ada Lovelace' --status reviewed",
)
def approve_command(
    path: _Path,
    record_id: _Id,
    by: Annotated[str, typer.Option(help="Who signs.", show_default=False)],
    status: Annotated[str, typer.Option(help="reviewed, approved, or draft to withdraw.")] = "approved",
    note: Annotated[str, typer.Option(help="Why.")] = "",
    json: _Json = False,
) -> None:
    """Move a record to a status."""
    with reported(json), _open(path) as store:
        record = store.sign_off(record_id, status, by=by, note=note)
        if json:
            print_json(record.to_json())
        else:
            typer.echo(f"record {record.id} is {record.status}, signed by {by}")


def _values(record: StoredRecord) -> str:
    names = record.document.get("metrics", [])
    return ", ".join(f"{name} {record.document[name]['value']:.4f}" for name in names)


def _write(path: Path, columns: dict[str, list[Any]]) -> None:
    rows = list(zip(*columns.values(), strict=True))
    with path.open("w", newline="") as file:
        if path.suffix == ".csv":
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(rows)
        else:
            for row in rows:
                file.write(json_module.dumps(dict(zip(columns, row, strict=True))) + "\n")
