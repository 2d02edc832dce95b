"""`fastbudget ledger`: what a run has spent on what."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .outcomes import print_json, reported

if TYPE_CHECKING:
    from rich.table import Table

    from ..budget import LedgerRecord

HELP = """Show what a run has spent on what: per phase, and per session if it was restarted.

A run that is under way is shown up to its last heartbeat."""
EPILOG = "Example: fastbudget ledger runs/digits --csv spend.csv"


def ledger_command(
    run_dir: Annotated[Path, typer.Argument(help="The run's directory.", show_default=False)],
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Also write one row per session and phase.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Print the ledger.

    Exit codes: 0 done, 2 no ledger there.
    """
    with reported(json):
        from ..budget import LEDGER_FILE, ledger_summary, read_ledger
        from ..core.errors import InvalidInputError, RunDirectoryError

        if not (run_dir / LEDGER_FILE).is_file():
            raise RunDirectoryError(f"{run_dir} holds no {LEDGER_FILE}; give the directory of a run.")
        record = read_ledger(run_dir)
        if csv_file is not None:
            try:
                _write_csv(csv_file, record)
            except OSError as error:
                raise InvalidInputError(f"--csv: {csv_file} can't be written: {error.strerror}.") from error
        if json:
            print_json({"run_dir": str(run_dir), **ledger_summary(record)})
        else:
            _print_tables(record)


def _rows(record: LedgerRecord) -> list[dict[str, Any]]:
    """Return one row per session and phase; time outside the budget last, without a session."""
    rows = []
    for session in record.session_records:
        common = {
            "session": session.number,
            "opened_at": session.opened_at,
            "closed_at": session.closed_at,
            "reason": session.reason,
            "devices": session.devices,
        }
        for billed, phases in ((True, session.billed_s), (False, session.unbilled_s)):
            for phase, seconds in phases.items():
                device_hours = seconds * session.devices / 3600
                spent = {"phase": phase, "seconds": seconds, "device_hours": device_hours, "billed": billed}
                rows.append(common | spent)
    nobody = dict.fromkeys(("session", "opened_at", "closed_at", "reason", "devices"))
    for phase, seconds in record.outside_s.items():
        rows.append({**nobody, "phase": phase, "seconds": seconds, "device_hours": None, "billed": False})
    return rows


def _write_csv(path: Path, record: LedgerRecord) -> None:
    names = ["session", "opened_at", "closed_at", "reason", "devices", "phase", "seconds", "device_hours", "billed"]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(_rows(record))


def _print_tables(record: LedgerRecord) -> None:
    from rich.console import Console

    from ..core.units import format_seconds

    console = Console()
    billed, total = record.billed_s, record.total_billed_s
    phases = _table("phase", "billed", "share")
    for phase in sorted(billed, key=lambda phase: -billed[phase]):
        phases.add_row(phase, format_seconds(billed[phase]), f"{billed[phase] / total:.1%}")
    for phase, seconds in record.unbilled_s.items():
        phases.add_row(phase, format_seconds(seconds), "outside the budget")
    sessions = _table("session", "opened (UTC)", "ended", "steps", "lost", "billed")
    for session in record.session_records:
        lost = session.billed_s.get("restart_loss")
        sessions.add_row(
            str(session.number),
            session.opened_at[:19].replace("T", " "),
            session.reason or "under way",
            f"{session.steps:,}",
            format_seconds(lost) if lost else "",
            format_seconds(session.total_billed_s),
        )
    console.print(phases)
    console.print(sessions)
    console.print(f"In all {format_seconds(total)}, {record.device_hours:.5f} device-hours.", highlight=False)
    if record.exhausted:
        status = record.exhausted["exit_status"]
        console.print(f"When it was spent, {record.exhausted['command']} ran: exit status {status}.", highlight=False)
    if record.damaged_lines:
        console.print(f"Damaged lines, skipped: {record.damaged_lines}.", highlight=False)


def _table(*titles: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title="")
    for title in titles:
        table.add_column(title, justify="right" if title in ("billed", "share", "steps", "lost") else "left")
    return table
