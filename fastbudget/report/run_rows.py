"""A run's record as rows of label and text, shared by the terminal and the HTML report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.units import SECONDS_PER_HOUR, format_bytes, format_count, format_seconds

Row = tuple[str, str]

STOP_REASONS = {
    "completed": "all steps taken",
    "budget": "the budget was spent",
    "target": "the target was reached, or the last stage ended",
    "patience": "no improvement for as many evaluations as allowed",
    "sigint": "interrupted (SIGINT)",
    "sigterm": "terminated (SIGTERM)",
}


def hours(device_hours: float) -> str:
    """Format device-hours with the same time in everyday units."""
    return f"{device_hours:.5f} device-hours ({format_seconds(device_hours * SECONDS_PER_HOUR)})"


def money(usd: float | None) -> str:
    """Format dollars; an unknown price stays unknown."""
    return "price unknown" if usd is None else f"${usd:,.4g}"


def _unless_unknown(value: float | None, text: Callable[[float], str]) -> str:
    return "unknown" if value is None else text(value)


def plan_rows(plan: dict[str, Any]) -> list[Row]:
    """Return what was planned."""
    step, predicted = plan["step_s"], plan["predicted_device_hours_interval"]
    low, high = (format_seconds(predicted[end] * SECONDS_PER_HOUR) for end in ("low", "high"))
    steps = f"{plan['planned_steps']:,} of {plan['requested_steps']:,}"
    return [
        ("Device", plan["device"] + (f", torch threads: {plan['threads']}" if plan["device"] == "cpu" else "")),
        ("Parameters", f"{plan['num_params']:,}"),
        (
            "Peak memory",
            _unless_unknown(plan["peak_memory_bytes"], lambda size: f"{format_bytes(size)} of tensors in training"),
        ),
        (
            "FLOPs per step",
            _unless_unknown(plan["step_flops"], lambda flops: format_count(flops, "FLOPs"))
            + f" ({plan['samples_per_step']} samples)",
        ),
        (
            "Step time",
            f"{format_seconds(step['mid'])} ({format_seconds(step['low'])} to {format_seconds(step['high'])})",
        ),
        ("Achieved", _unless_unknown(plan["achieved_flops_per_s"], lambda rate: format_count(rate, "FLOP/s"))),
        ("Planned steps", steps + (", cut to fit the budget" if plan["cut_by_budget"] else "")),
        ("Predicted spend", f"{hours(plan['predicted_device_hours'])}, 80%: {low} to {high}"),
        ("Predicted cost", money(plan["predicted_usd"])),
        ("Budget", f"{hours(plan['budget_device_hours'])}, set by {plan['ruling_limit']}"),
    ]


def spend_rows(train: dict[str, Any]) -> list[Row]:
    """Return what was spent, in all and by phase."""
    rows = [
        ("Stopped because", STOP_REASONS.get(train["stop_reason"], train["stop_reason"])),
        ("Steps taken", f"{train['steps']:,}"),
        ("Spent", hours(train["spent_device_hours"])),
        ("Budget", hours(train["budget_device_hours"])),
        ("Cost", money(train["spent_usd"])),
        (
            "Best checkpoint",
            f"step {train['best_step']:,}, by {train['ranked_by']}: {train['best_checkpoint']}",
        ),
    ]
    rows += [(f"Billed: {phase}", format_seconds(s)) for phase, s in train["seconds_by_phase"].items()]
    rows += [
        (f"Outside the budget: {phase}", format_seconds(s)) for phase, s in train["unbilled_seconds_by_phase"].items()
    ]
    return rows


def metric_values(evaluation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the evaluation's metrics, without its other fields."""
    return {name: value for name, value in evaluation.items() if isinstance(value, dict) and "value" in value}


def export_rows(export: dict[str, Any]) -> list[Row]:
    """Return how the artifact compares with the model."""
    ratio = export["latency_ratio"]
    speed = f"{ratio:.2f}× faster" if ratio >= 1 else f"{1 / ratio:.2f}× slower"
    batch = export["latency_batch_size"]
    return [
        ("Artifact", f"{export['path']} ({export['target']}, opset {export['opset']})"),
        ("Size", format_bytes(export["bytes"])),
        ("Largest difference", f"{export['max_abs_diff']:.3g} on {export['num_examples']} examples"),
        ("Same predictions", f"{export['same_predictions']:.2%}"),
        (
            "Latency",
            f"{format_seconds(export['artifact_latency_s'])} against {format_seconds(export['torch_latency_s'])} in "
            f"eager torch: {speed} (batch {batch}, one thread)",
        ),
    ]
