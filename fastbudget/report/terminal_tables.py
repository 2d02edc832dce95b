"""Tables for the terminal, from records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .run_rows import export_rows, metric_values, plan_rows, spend_rows

if TYPE_CHECKING:
    from rich.table import Table


def _pairs(title: str, rows: list[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(label), Text(text))  # Text: names from the user may hold rich's markup
    return table


def plan_table(plan: dict[str, Any]) -> Table:
    """Return the plan."""
    return _pairs("Plan", plan_rows(plan))


def spend_table(train: dict[str, Any]) -> Table:
    """Return what training spent."""
    return _pairs("Training", spend_rows(train))


def export_table(export: dict[str, Any]) -> Table:
    """Return how the artifact compares."""
    return _pairs("Export", export_rows(export))


def evaluation_table(evaluation: dict[str, Any]) -> Table:
    """Return the metrics with their intervals."""
    rows = [
        (name, f"{v['value']:.4f}  ({v['confidence']:.0%}: {v['low']:.4f} to {v['high']:.4f}; {v['method']})")
        for name, v in metric_values(evaluation).items()
    ]
    return _pairs(f"Evaluation on {evaluation['split']}, {evaluation['num_examples']:,} examples", rows)
