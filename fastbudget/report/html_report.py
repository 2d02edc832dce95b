"""One self-contained HTML file about a run: planned, spent, learned, evaluated, exported."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..core.durable_files import write_durably
from ..core.units import SECONDS_PER_HOUR, format_seconds
from .checklist_section import CHECKLIST_FILE, checklist_section
from .line_chart import Point, line_chart
from .run_rows import STOP_REASONS, Row, export_rows, hours, metric_values, money, plan_rows, spend_rows

REPORT_FILE = "report.html"

_PHASE_COLORS = ("var(--a)", "var(--b)", "var(--good)", "var(--warn)", "var(--soft)")


def _table(rows: list[Row]) -> str:
    body = "".join(f"<tr><th scope=row>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in rows)
    return f"<div class=scroll><table>{body}</table></div>"


def _missing(text: str) -> str:
    return f"<p class=missing>{escape(text)}</p>"


def _tiles(record: dict[str, Any]) -> str:
    tiles: list[Row] = []
    train, evaluation, export = record.get("train"), record.get("evaluate"), record.get("export")
    if train:
        share = train["spent_device_hours"] / train["budget_device_hours"]
        tiles.append(
            (
                format_seconds(train["spent_device_hours"] * SECONDS_PER_HOUR),
                f"spent, {share:.0%} of the budget",
            )
        )
        tiles.append((f"{train['steps']:,}", f"steps; {STOP_REASONS.get(train['stop_reason'], train['stop_reason'])}"))
    if evaluation:
        for name, value in list(metric_values(evaluation).items())[:2]:
            tiles.append((f"{value['value']:.4f}", f"{name}, {value['low']:.4f} to {value['high']:.4f}"))
    if export:
        tiles.append((f"{export['latency_ratio']:.2f}×", "speed of the ONNX export against eager torch"))
    inner = "".join(f"<div class=tile><b>{escape(big)}</b><span>{escape(small)}</span></div>" for big, small in tiles)
    return f"<div class=tiles>{inner}</div>"


def _plan_against_actual(record: dict[str, Any]) -> str:
    plan, train = record.get("plan"), record.get("train")
    if not plan:
        return _missing("The run ended before a plan was made.")
    text = _table(plan_rows(plan))
    if not train:
        return text
    planned = plan["predicted_device_hours_interval"]
    spent = train["spent_device_hours"]
    verdict = "inside" if planned["low"] <= spent <= planned["high"] else "outside"
    rows = [
        ("Steps", f"{plan['planned_steps']:,}", f"{train['steps']:,}"),
        ("Device time", hours(plan["predicted_device_hours"]), f"{hours(spent)}, {verdict} the interval"),
        ("Cost", money(plan["predicted_usd"]), money(train["spent_usd"])),
    ]
    body = "".join(
        f"<tr><th scope=row>{escape(a)}</th><td class=number>{escape(b)}</td><td class=number>{escape(c)}</td></tr>"
        for a, b, c in rows
    )
    head = "<tr><th></th><th scope=col>Planned</th><th scope=col>Actual</th></tr>"
    return f"{text}<h3>Plan against actual</h3><div class=scroll><table>{head}{body}</table></div>"


def _spend(record: dict[str, Any]) -> str:
    train = record.get("train")
    if not train:
        return _missing("Training did not finish, so its spending is only in ledger.jsonl.")
    phases: dict[str, float] = train["seconds_by_phase"]
    limit = train["budget_device_hours"] * SECONDS_PER_HOUR
    bars, keys = [], []
    for index, (phase, seconds) in enumerate(phases.items()):
        color = _PHASE_COLORS[index % len(_PHASE_COLORS)]
        width = 100 * seconds / limit
        bars.append(f'<i style="width:{width:.2f}%;background:{color}"></i>')
        keys.append(f'<li><i style="background:{color}"></i>{escape(phase)} {escape(format_seconds(seconds))}</li>')
    used = train["spent_device_hours"] / train["budget_device_hours"]
    return (
        f'<div class=meter role=img aria-label="{used:.0%} of the budget was spent">{"".join(bars)}</div>'
        f"<ul class=key>{''.join(keys)}<li>whole bar: the budget</li></ul>{_table(spend_rows(train))}"
    )


def _curves(lines: list[dict[str, Any]]) -> str:
    losses: list[Point] = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    rates: list[Point] = [(line["step"], line["lr"]) for line in lines if "lr" in line]
    charts = [line_chart(losses, title="Training loss", x_label="step", y_label="loss", log_if_wide=True)]
    names = list(dict.fromkeys(name for line in lines for name in line.get("metrics", {})))
    for name in names:
        points = [
            (line["step"], line["metrics"][name]) for line in lines if line.get("metrics", {}).get(name) is not None
        ]
        charts.append(
            line_chart(
                points,
                title=f"{name} on validation",
                x_label="step",
                y_label=name,
                markers=True,
                css_class="b",
            )
        )
    charts.append(line_chart(rates, title="Learning rate", x_label="step", y_label="learning rate"))
    return "".join(charts)


def _evaluation(record: dict[str, Any]) -> str:
    evaluation = record.get("evaluate")
    if not evaluation:
        return _missing("No final evaluation was made.")
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td class=number>{value['value']:.4f}</td>"
        f"<td class=number>{value['low']:.4f} to {value['high']:.4f}</td><td>{value['confidence']:.0%}</td>"
        f"<td>{escape(value['method'])}</td></tr>"
        for name, value in metric_values(evaluation).items()
    )
    head = "".join(f"<th scope=col>{name}</th>" for name in ("Metric", "Value", "Interval", "Confidence", "Method"))
    return (
        f"<p>Checkpoint of step {evaluation['step']:,}, {evaluation['num_examples']:,} examples of the "
        f"{escape(evaluation['split'])} split, {escape(format_seconds(evaluation['seconds']))}.</p>"
        f"<div class=scroll><table><tr>{head}</tr>{rows}</table></div>"
    )


def _environment(record: dict[str, Any]) -> str:
    environment = record.get("environment") or {}
    rows = [
        (name.replace("_", " "), str(environment[name]))
        for name in ("cpu", "usable_cpus", "platform", "python", "nvidia_driver")
        if environment.get(name) is not None
    ]
    rows += [(name, number) for name, number in (environment.get("packages") or {}).items() if number]
    rows += [("configuration", json.dumps(record.get("configuration")))]
    return _table(rows)


def read_metric_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a metrics file, the newest of each step after resumes, and how many couldn't be read."""
    lines: dict[tuple[Any, bool], dict[str, Any]] = {}
    damaged = 0
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return [], 0
    for raw in text.splitlines():
        try:
            line = json.loads(raw)
            lines[(line["step"], "metrics" in line)] = line
        except (ValueError, KeyError, TypeError):
            damaged += 1
    return sorted(lines.values(), key=lambda line: line["step"]), damaged


def write_report(run_dir: Path, record: dict[str, Any], metrics_file: str = "metrics.jsonl") -> Path:
    """Write ``report.html`` into a run directory.

    Args:
        run_dir: Holds the metrics file.
        record: The run's record as plain data; stages that are None are reported as missing.
        metrics_file: JSON lines with ``step`` and ``loss``, ``lr`` or ``metrics``.
    """
    lines, damaged = read_metric_lines(run_dir / metrics_file)
    notes = list(record.get("messages") or [])
    if damaged:
        notes.append(f"{damaged} lines of {metrics_file} could not be read and are left out.")
    sections = [
        ("Plan", _plan_against_actual(record)),
        ("Spending", _spend(record)),
        ("Curves", _curves(lines)),
        ("Evaluation", _evaluation(record)),
        (
            "Export",
            _table(export_rows(record["export"])) if record.get("export") else _missing("Nothing was exported."),
        ),
        ("Environment", _environment(record)),
    ]
    checklist = checklist_section(run_dir / CHECKLIST_FILE)
    if checklist is not None:
        sections.insert(4, ("Quality checklist", checklist))
    name = escape(str(record.get("name", run_dir.name)))
    body = "".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections)
    style = files(__package__).joinpath("report.css").read_text()
    page = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{name}: fastbudget report</title><style>{style}</style></head><body>"
        f"<h1>{name}</h1><p class=lead>Started {escape(str(record.get('started_at', 'at an unknown time')))}, in "
        f"{escape(str(record.get('run_dir', run_dir)))}</p>{_tiles(record)}"
        f"{''.join(f'<p class=note>{escape(note)}</p>' for note in notes)}{body}</body></html>\n"
    )
    path = run_dir / REPORT_FILE
    write_durably(path, page.encode())
    return path
