"""What `fastbudget estimate` prints for people to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

_WIDTH = 19
_LARGEST_SHOWN = 4
_LINES = {
    "start_up": "start-up",
    "warm_up": "warm-up",
    "steps": "steps",
    "evaluation": "evaluation",
    "checkpoints": "checkpoints",
    "restarts": "restarts",
    "spot_interruptions": "spot reclaims",
    "buffer": "buffer",
}


def show_estimate(document: dict[str, Any]) -> None:
    """Print parameters, memory, and where they are known time, money and tokens."""
    from ..core.units import format_count

    _line("parameters", f"{document['num_params']:,}")
    if "step_flops" in document:
        _line("operations per step", format_count(document["step_flops"], "FLOPs"))
    _show_memory(document["memory"])
    if document.get("step_time_s"):
        _show_time(document)
    if "decode_step_s" in document:
        _show_inference(document)
    if document.get("job"):
        _show_job(document["job"])
    for note in (*document["memory"]["notes"], *document.get("notes", [])):
        typer.echo(f"note: {note}")
    for words in document.get("extrapolating", []):
        typer.echo(f"extrapolating: {words}")


def show_claim(document: dict[str, Any]) -> None:
    """Print the verdict on a claim and what it rests on."""
    _line("verdict", document["verdict"])
    for name, value in document["claim"].items():
        _line(f"  {name}", f"{value:,.6g}" if isinstance(value, float) else str(value))
    for finding in document["findings"]:
        typer.echo(f"{finding['kind']}: {finding['message']}")
    for words in document["checked"]:
        typer.echo(f"checked: {words}")
    for words in document["notes"]:
        typer.echo(f"note: {words}")
    for words in document["unread"]:
        typer.echo(f"not understood, and not checked: {words}")
    if document["verdict"] == "unchecked":
        typer.echo("The claim says too little to check: name the device, and two of model, speed, tokens and hours.")


def _show_memory(memory: dict[str, Any]) -> None:
    from ..core.units import format_bytes

    for name in ("allocated", "active", "reserved", "device", "capacity"):
        value = memory[f"{name}_bytes"]
        if value is not None:
            _line(name, format_bytes(value))
    if memory["fits"] is not None:
        _line("fits", f"{memory['fits']} (margin {memory['margin']:.0%})")
    if memory["largest_micro_batch"] is not None:
        _line("largest micro-batch", str(memory["largest_micro_batch"]))
    typer.echo("at the peak:")
    for name, value in memory["by_category"].items():
        if value:
            _line(f"  {name}", format_bytes(value))
    for tensor in memory.get("largest_at_peak", [])[:5]:
        owner = tensor["module"] or "the model"
        typer.echo(f"  {format_bytes(tensor['size_bytes']):>12} {tensor['category']} of {owner}")
    stages = memory.get("per_stage", [])
    for stage in stages if len(stages) > 1 else []:
        typer.echo(f"  stage {stage['stage']}: {stage['layers']} layers, {format_bytes(stage['device_bytes'])}")


def _show_time(document: dict[str, Any]) -> None:
    from ..core.units import format_count, format_seconds

    _interval("step time", document["step_time_s"], format_seconds)
    if "tokens_per_s_per_device" in document:
        devices = document["num_devices"]
        _interval(
            "tokens per second",
            document["tokens_per_s_per_device"],
            lambda rate: format_count(rate * devices),
            unit=f"; {document['tokens_per_s_per_device']['mid']:,.0f} per device" if devices > 1 else "",
        )
    for label in ("MFU", "HFU"):
        if document[label.lower()] is not None:
            _interval(label, document[label.lower()], "{:.1%}".format)
    parts = sorted(document["time_parts"].items(), key=lambda part: -part[1])
    total = sum(document["time_parts"].values())
    typer.echo("the step's time goes to:")
    for name, seconds in parts:
        if seconds >= 0.01 * total:
            typer.echo(f"  {seconds / total:4.0%} {name.replace('_', ' ')}")
    for label in ("operation", "module"):
        largest = list(document.get(f"time_by_{label}", {}).items())[:_LARGEST_SHOWN]
        if largest:
            shown = ", ".join(f"{name or 'the model itself'} {seconds / total:.0%}" for name, seconds in largest)
            typer.echo(f"most of it by {label}: {shown}")


def _show_job(job: dict[str, Any]) -> None:
    from ..core.units import format_seconds

    typer.echo(f"the whole job, {job['num_steps']:,} steps on {job['billed_devices']:,} billed devices:")
    for name, line in job["lines_s"].items():
        if line["high"] > 0:
            _interval(f"  {_LINES[name]}", line, format_seconds)
    _interval("wall hours", job["wall_hours"], "{:,.1f}".format)
    _interval("GPU-hours", job["gpu_hours"], "{:,.1f}".format)
    _money("USD", job["usd"])
    if job["usd_spot"] is not None and job["usd"] != job["usd_spot"]:
        _money("USD on spot devices", job["usd_spot"])
    for name, key in (("kWh", "kwh"), ("kg CO2e", "co2e_kg")):
        if job[key] is not None:
            _interval(name, job[key], "{:,.1f}".format)
    for words in job["assumptions"]:
        typer.echo(f"assumed: {words}")


def _show_inference(document: dict[str, Any]) -> None:
    from ..core.units import format_bytes, format_seconds

    _line("weights", format_bytes(document["weight_bytes"]))
    _line("KV cache", format_bytes(document["kv_cache_bytes"]))
    _interval("prefill", document["prefill_s"], format_seconds)
    _interval("decoding a token", document["decode_step_s"], format_seconds)
    _interval("whole request", document["request_s"], format_seconds)
    _interval("output tokens/s", document["output_tokens_per_s"], "{:,.1f}".format)
    _money("USD per M tok. in", document["usd_per_million_input_tokens"])
    _money("USD per M tok. out", document["usd_per_million_output_tokens"])
    typer.echo("by batch:  sequences, tokens/s, seconds per token, USD per million tokens out")
    for speed in document["by_batch"]:
        usd = speed["usd_per_million_output_tokens"]
        seconds = format_seconds(speed["decode_step_s"]["mid"])
        price = "?" if usd is None else _usd(usd["mid"])
        typer.echo(f"  {speed['batch_size']:8,} {speed['output_tokens_per_s']['mid']:12,.1f} {seconds:>12} {price:>9}")


def _line(label: str, text: str) -> None:
    typer.echo(f"{label:{_WIDTH}} {text}")


def _interval(label: str, interval: dict[str, float], shown: Callable[[float], str], unit: str = "") -> None:
    low, mid, high = (shown(interval[end]) for end in ("low", "mid", "high"))
    _line(label, f"{mid}  ({low} to {high}{unit})" if low != high else mid + unit)


def _money(label: str, interval: dict[str, float] | None) -> None:
    if interval is None:
        _line(label, "unknown: no price; give --usd-per-device-hour, --provider or --prices")
    else:
        _interval(label, interval, _usd)


def _usd(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"
