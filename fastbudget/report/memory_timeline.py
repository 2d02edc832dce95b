"""Memory by category over a traced step, as one self-contained HTML page or a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.durable_files import write_durably
from ..core.errors import InvalidInputError, MissingExtraError
from ..core.units import format_bytes
from .line_chart import nice_ticks

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 360, 76, 16, 24, 44
_MOST_COLUMNS = 800
_COLORS = ("#0b62c4", "#b3470a", "#7a4fb5", "#1a7f37", "#9a6700", "#59636e", "#c2437c")
_GIB = 2**30

Bytes = npt.NDArray[np.int64]


def write_memory_timeline(
    path: Path, categories: Sequence[str], category_bytes: Bytes, phases: Sequence[str], phase: Any, title: str
) -> None:
    """Write the timeline.

    Args:
        path: ``.html``, or ``.png`` with matplotlib installed.
        categories: Names, C of them.
        category_bytes: int64 [C, E], bytes alive after each event.
        phases: Names of phases.
        phase: int [E], an index into them.
        title: Above the chart.

    Raises:
        InvalidInputError: another suffix, or nothing was allocated.
        MissingExtraError: a PNG without matplotlib.
    """
    if category_bytes.shape[1] == 0:
        raise InvalidInputError("Nothing was allocated, so there is no timeline to draw.")
    columns = _columns(category_bytes)
    shown = category_bytes[:, columns]
    if not path.absolute().parent.is_dir():
        raise InvalidInputError(f"The directory of {path} does not exist; make it first.")
    if path.suffix == ".html":
        write_durably(path, _page(categories, shown, phases, np.asarray(phase)[columns], title).encode())
    elif path.suffix == ".png":
        _write_png(path, categories, shown, title)
    else:
        raise InvalidInputError(f"A timeline is written as .html or .png, got {path.name!r}.")


def _columns(category_bytes: Bytes) -> npt.NDArray[np.intp]:
    """Return the events to draw: all, or each stretch's highest, so that the peak is never lost."""
    total = category_bytes.sum(axis=0)
    if len(total) <= _MOST_COLUMNS:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), _MOST_COLUMNS + 1).astype(int)
    return np.array([begin + int(np.argmax(total[begin:end])) for begin, end in pairwise(edges)])


def _page(categories: Sequence[str], shown: Bytes, phases: Sequence[str], phase: Any, title: str) -> str:
    style = files(__package__).joinpath("report.css").read_text()
    keys = "".join(
        f'<li><i style="background:{color}"></i>{escape(name)}, at most {escape(format_bytes(int(row.max())))}</li>'
        for name, color, row in zip(categories, _COLORS, shown, strict=False)
        if row.max() > 0
    )
    peak = escape(format_bytes(int(shown.sum(axis=0).max())))
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><h1>{escape(title)}</h1>"
        "<p class=lead>Bytes of tensors alive over the trace: building the model, a first step in which the "
        f"optimizer's states appear, a steady one. Peak {peak}.</p>"
        f"{_svg(shown, phases, phase, title)}<ul class=key>{keys}</ul></body></html>\n"
    )


def _svg(shown: Bytes, phases: Sequence[str], phase: Any, title: str) -> str:
    top = np.cumsum(shown, axis=0)
    highest = max(1, int(top[-1].max()))
    x = np.linspace(_LEFT, _WIDTH - _RIGHT, shown.shape[1])

    def y(values: Any) -> Any:
        return _HEIGHT - _BOTTOM - np.asarray(values) / highest * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    below = np.zeros(shown.shape[1])
    for row, color in zip(top, _COLORS, strict=False):
        upper = [f"{a:.1f},{b:.1f}" for a, b in zip(x, y(row), strict=True)]
        lower = [f"{a:.1f},{b:.1f}" for a, b in zip(x[::-1], y(below)[::-1], strict=True)]
        parts.append(f'<polygon fill="{color}" points="{" ".join(upper + lower)}"/>')
        below = row
    for tick in nice_ticks(0, highest / _GIB):
        at = float(y(tick * _GIB))
        parts.append(f'<line class=grid x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    last_label = -100.0
    for start in np.flatnonzero(np.diff(np.asarray(phase, np.int64), prepend=-1)):
        if x[start] - last_label >= 64:  # wide enough for a phase's name
            name = escape(phases[int(phase[start])])
            parts.append(f'<text x="{x[start]:.1f}" y="{_HEIGHT - _BOTTOM + 18}">{name}</text>')
            last_label = float(x[start])
    parts.append(f'<text transform="translate(14 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">GiB</text>')
    label = "allocations and frees, in order"
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{label}</text>')
    return "".join([*parts, "</svg>"])


def _write_png(path: Path, categories: Sequence[str], shown: Bytes, title: str) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("A PNG needs matplotlib: `pip install matplotlib`, or write .html instead.") from error
    figure = Figure(figsize=(10, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.stackplot(np.arange(shown.shape[1]), shown / _GIB, labels=list(categories), colors=_COLORS[: len(categories)])
    axes.set(title=title, xlabel="allocations and frees, in order", ylabel="GiB")
    axes.legend(loc="upper left", fontsize=8)
    figure.savefig(path)
