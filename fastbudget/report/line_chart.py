"""A line chart as inline SVG: labeled axes, no script, colors from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT = 720, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 44
_MOST_POINTS = 600

Point = tuple[float, float]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers (1, 2 or 5 times a power of ten apart) that cover [low, high]'s inside."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def downsample(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Return at most about ``most`` points, each bucket's lowest and highest kept so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) * 2 / most)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        ends = {min(bucket, key=lambda point: point[1]), max(bucket, key=lambda point: point[1])}
        kept.extend(sorted(ends))
    return kept


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten in [low, high], or 1, 2 and 5 times them where few fit."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if len(decades) > 4 else (1, 2, 5)
    ticks = [factor * 10.0**decade for decade in decades for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


def line_chart(
    points: Sequence[Point],
    *,
    title: str,
    x_label: str,
    y_label: str,
    markers: bool = False,
    css_class: str = "a",
    log_if_wide: bool = False,
) -> str:
    """Return a figure with one series.

    Args:
        points: (x, y) in order of x; points that aren't finite are left out.
        title: Above the chart, and its accessible name.
        x_label: With its unit.
        y_label: With its unit.
        markers: Draw a dot with its value at each point.
        css_class: Names the series' color in the page's style.
        log_if_wide: Use a logarithmic axis, and say so, when positive values span a factor of 50 or more.
    """
    finite = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if not finite:
        return f"<figure><figcaption>{escape(title)}</figcaption><p class=missing>No values were recorded.</p></figure>"
    shown = downsample(finite)
    x_low, x_high = shown[0][0], shown[-1][0]
    y_low, y_high = min(y for _, y in shown), max(y for _, y in shown)
    logarithmic = log_if_wide and y_low > 0 and y_high / y_low >= 50
    ticks = log_ticks(y_low, y_high) if logarithmic else None
    scale = math.log10 if logarithmic else float
    if logarithmic:
        y_label = f"{y_label} (log scale)"
    if y_low == y_high:
        pad = abs(y_low) * 0.1 or 1.0
        y_low, y_high = y_low - pad, y_high + pad
    if x_low == x_high:
        x_high = x_low + 1

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)
        down = (scale(y_high) - scale(y)) / (scale(y_high) - scale(y_low)) * (_HEIGHT - _TOP - _BOTTOM)
        return _LEFT + across, _TOP + down

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in ticks or nice_ticks(y_low, y_high):
        _, y = place(x_low, tick)
        parts.append(f'<line class=grid x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    for tick in nice_ticks(x_low, x_high, 7):
        x, _ = place(tick, y_low)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{tick:,.6g}</text>')
    middle_x, middle_y = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(f'<text x="{middle_x}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text transform="translate(14 {middle_y}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in shown))
    parts.append(f'<polyline class="series {escape(css_class)}" points="{line}"/>')
    if markers:
        for x_value, y_value in shown:
            x, y = place(x_value, y_value)
            tip = f"{x_label} {x_value:,.6g}: {y_value:.6g}"
            parts.append(
                f'<circle class="dot {escape(css_class)}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
                f"<title>{escape(tip)}</title></circle>"
            )
    parts.append("</svg>")
    return f"<figure><figcaption>{escape(title)}</figcaption>{''.join(parts)}</figure>"
