"""A searched plan's candidates as a table for the terminal, from the plan's JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.units import format_count

if TYPE_CHECKING:
    from rich.table import Table

_GIB = 2**30


def front_table(plan: dict[str, Any], most: int = 12) -> Table:
    """Return the best candidates, those on the Pareto front marked.

    Args:
        plan: The plan's JSON document.
        most: Rows at most.
    """
    from rich.table import Table

    shown = plan["candidates"][:most]
    one_precision = len({one["layout"]["precision"] for one in shown}) == 1
    title = f"{len(shown)} of {len(plan['candidates'])} candidates, best first, with 80% intervals; * Pareto front"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    money = {"usd": "USD", "gpu_hours": "device-hours"}[plan["cost_axis"]]
    for name in ("", "devices", "layout", money, "hours", "MFU", "GiB", "fits"):
        numeric = name in (money, "hours", "MFU", "GiB")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name != "layout")
    front = shown[0]["rank"] if shown else 0
    for one in shown:
        words = one["layout_words"].replace("micro-batch", "mb")
        table.add_row(
            "*" if one["rank"] == front else "",
            f"{one['num_devices']:,} x {one['hardware']}",
            words.removesuffix(f", {one['layout']['precision']}") if one_precision else words,
            _interval(one[plan["cost_axis"]]),
            _short(one["wall_hours"]["mid"]),
            f"{one['mfu']['mid']:.0%}",
            f"{one['memory']['device_bytes'] / _GIB:.0f}/{one['memory']['capacity_bytes'] / _GIB:.0f}",
            one["fits"],
        )
    return table


def _interval(value: dict[str, float] | None) -> str:
    if value is None:
        return "?"
    return f"{_short(value['mid'])} ({_short(value['low'])}-{_short(value['high'])})"


def _short(value: float) -> str:
    """Three digits: 427, 131k, 2.05M."""
    return format_count(value).replace(" ", "") if value >= 1000 else f"{value:.3g}"
