"""A plan's candidates as a chart of cost over hours: the front, what lies behind it, what is at risk, the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from math import log10
from pathlib import Path
from typing import Any

from ..core.durable_files import write_durably
from ..core.errors import InvalidInputError, MissingExtraError
from .line_chart import log_ticks, nice_ticks

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 76, 24, 40, 48
_COLORS = ("#0b62c4", "#b3470a", "#7a4fb5", "#1a7f37", "#9a6700", "#c2437c")
# For a chart outside a page, which has no style sheet of its own.
_STYLE = (
    "svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#59636e}.grid{stroke:#d8dee4}"
    ".limit{stroke:#cf222e;stroke-dasharray:5 4}.front{fill:none;stroke-width:1.5;opacity:.6}"
)


@dataclass(frozen=True, kw_only=True)
class ParetoPoint:
    """A candidate in the chart.

    Attributes:
        hours: from start to end.
        cost: in the unit of the axis.
        label: what it is, in words.
        group: its hardware, which gives the color.
        on_front: no other beats it in both.
        at_risk: it fits in the middle of the estimate only; drawn hollow.
        best: drawn larger.
    """

    hours: float
    cost: float
    label: str
    group: str
    on_front: bool
    at_risk: bool
    best: bool


def write_pareto_chart(path: Path, plan: dict[str, Any]) -> None:
    """Draw a plan's candidates.

    Args:
        path: ``.svg``, ``.html``, or ``.png`` with matplotlib installed.
        plan: The plan's JSON document.

    Raises:
        InvalidInputError: another suffix, a missing directory, or no candidates.
        MissingExtraError: a PNG without matplotlib.
    """
    points = _points(plan)
    if not points:
        raise InvalidInputError("Nothing fits, so there are no candidates to draw.")
    if not path.absolute().parent.is_dir():
        raise InvalidInputError(f"The directory of {path} does not exist; make it first.")
    unit = {"usd": "USD", "gpu_hours": "device-hours"}[plan["cost_axis"]]
    limits = (_hours_limit(plan["limits"]), plan["limits"].get(plan["cost_axis"]))
    if path.suffix == ".svg":
        text = _svg(points, unit, limits).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        write_durably(path, text.replace(">", f"><style>{_STYLE}</style>", 1).encode())
    elif path.suffix == ".html":
        write_durably(path, _page(points, unit, limits, plan).encode())
    elif path.suffix == ".png":
        _write_png(path, points, unit, limits)
    else:
        raise InvalidInputError(f"A plan's chart is written as .svg, .png or .html, got {path.name!r}.")


def _points(plan: dict[str, Any]) -> list[ParetoPoint]:
    candidates = plan["candidates"]
    return [
        ParetoPoint(
            hours=one["wall_hours"]["mid"],
            cost=one[plan["cost_axis"]]["mid"],
            label=f"{one['num_devices']:,} x {one['hardware']}",
            group=one["hardware"],
            on_front=one["rank"] == candidates[0]["rank"],
            at_risk=one["fits"] != "yes",
            best=number == 0,
        )
        for number, one in enumerate(candidates)
        if one[plan["cost_axis"]] is not None  # its price is not known
    ]


def _hours_limit(limits: dict[str, float]) -> float | None:
    hours = [limits[name] for name in ("deadline_hours", "wall_hours") if name in limits]
    return min(hours) if hours else None


def _scale(values: Sequence[float], start: float, end: float) -> tuple[Callable[[float], float], list[float]]:
    """Return where values lie on a logarithmic axis, and its ticks."""
    low, high = min(values) / 1.15, max(values) * 1.15

    def place(value: float) -> float:
        return start + (log10(value) - log10(low)) / (log10(high) - log10(low)) * (end - start)

    ticks = log_ticks(low, high)
    return place, ticks if len(ticks) > 1 else nice_ticks(low, high)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _svg(points: Sequence[ParetoPoint], unit: str, limits: tuple[float | None, float | None]) -> str:
    hours_limit, cost_limit = limits
    x, x_ticks = _scale([*(p.hours for p in points), *([hours_limit] if hours_limit else [])], _LEFT, _WIDTH - _RIGHT)
    y, y_ticks = _scale([*(p.cost for p in points), *([cost_limit] if cost_limit else [])], _HEIGHT - _BOTTOM, _TOP)
    title = f"Cost in {unit} over hours, both logarithmic"
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in y_ticks:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    parts += [
        f'<text x="{x(tick):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{_number(tick)}</text>'
        for tick in x_ticks
    ]
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 8}" text-anchor="middle">hours</text>')
    parts.append(f'<text transform="translate(14 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">{unit}</text>')
    if hours_limit:
        at = x(hours_limit)
        parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(
            f'<text x="{at - 4:.1f}" y="{_TOP + 12}" text-anchor="end">at most {_number(hours_limit)} hours</text>'
        )
    if cost_limit:
        at = y(cost_limit)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT + 4}" y="{at - 4:.1f}">at most {_number(cost_limit)} {unit}</text>')
    groups = list(dict.fromkeys(point.group for point in points))
    color = {group: _COLORS[number % len(_COLORS)] for number, group in enumerate(groups)}
    front = sorted((point for point in points if point.on_front), key=lambda point: point.hours)
    line = " ".join(f"{x(point.hours):.1f},{y(point.cost):.1f}" for point in front)
    parts.append(
        f'<polyline class="front" style="fill:none;stroke:{color[front[0].group]};opacity:.6" points="{line}"/>'
    )
    for point in sorted(points, key=lambda point: point.best):
        radius = 8 if point.best else 5 if point.on_front else 3.5
        fill = "none" if point.at_risk else color[point.group]
        tip = f"{point.label}: {point.cost:,.0f} {unit}, {point.hours:,.1f} hours{', at risk' if point.at_risk else ''}"
        parts.append(
            f'<circle cx="{x(point.hours):.1f}" cy="{y(point.cost):.1f}" r="{radius}" stroke="{color[point.group]}" '
            f'fill="{fill}" opacity="{1 if point.on_front else 0.55}"><title>{escape(tip)}</title></circle>'
        )
        if point.on_front:
            label = f"{escape(point.label)}{' (best)' if point.best else ''}"
            # Labels near the right edge stand to the left of their points.
            side, anchor = (-9, "end") if x(point.hours) > 0.75 * _WIDTH else (9, "start")
            where = f'x="{x(point.hours) + side:.1f}" y="{y(point.cost) - 8:.1f}" text-anchor="{anchor}"'
            parts.append(f"<text {where}>{label}</text>")
    for number, group in enumerate(groups):
        parts.append(f'<circle cx="{_LEFT + 8}" cy="{14 + 16 * number}" r="5" fill="{color[group]}"/>')
        parts.append(f'<text x="{_LEFT + 18}" y="{18 + 16 * number}">{escape(group)}</text>')
    return "".join([*parts, "</svg>"])


def _cost(candidate: dict[str, Any], axis: str) -> str:
    return "?" if candidate[axis] is None else f"{candidate[axis]['mid']:,.0f}"


def _page(
    points: Sequence[ParetoPoint], unit: str, limits: tuple[float | None, float | None], plan: dict[str, Any]
) -> str:
    style = files(__package__).joinpath("report.css").read_text()
    rows = "".join(
        f"<tr><td>{escape(one['summary'])}</td><td class=number>{_cost(one, plan['cost_axis'])}</td>"
        f"<td class=number>{one['wall_hours']['mid']:,.1f}</td><td>{escape(one['fits'])}</td></tr>"
        for one in plan["candidates"]
    )
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>Training plan</title><style>{style} .limit{{stroke:var(--warn);stroke-dasharray:5 4}}</style></head>"
        f"<body><h1>Training plan</h1><p class=lead>{escape(plan['why_best'])}</p>"
        f"<p class=note>What binds next: {escape(plan['next_constraint'])}</p>{_svg(points, unit, limits)}"
        f"<div class=scroll><table><tr><th>candidate</th><th>{unit}</th><th>hours</th><th>fits</th></tr>{rows}</table>"
        "</div></body></html>\n"
    )


def _write_png(path: Path, points: Sequence[ParetoPoint], unit: str, limits: tuple[float | None, float | None]) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "A PNG needs matplotlib: `pip install matplotlib`, or write .svg or .html instead."
        ) from error
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, group in enumerate(dict.fromkeys(point.group for point in points)):
        color = _COLORS[number % len(_COLORS)]
        own = [point for point in points if point.group == group]
        axes.scatter(
            [point.hours for point in own],
            [point.cost for point in own],
            s=[90 if point.best else 40 if point.on_front else 15 for point in own],
            facecolors=["none" if point.at_risk else color for point in own],
            edgecolors=color,
            label=group,
        )
    for point in points:
        if point.on_front:
            axes.annotate(point.label, (point.hours, point.cost), (6, 6), textcoords="offset points", fontsize=8)
    hours_limit, cost_limit = limits
    if hours_limit:
        axes.axvline(hours_limit, color="#cf222e", linestyle="--")
    if cost_limit:
        axes.axhline(cost_limit, color="#cf222e", linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="hours", ylabel=unit)
    axes.legend(fontsize=8)
    figure.savefig(path)
