"""`fastbudget estimate`: memory and operations of a training step, before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .outcomes import REFUSED, print_json, reported

if TYPE_CHECKING:
    from ..cost import Estimate, TransformerEstimate

HELP = """Predict the peak memory and the operations of a training step without running it.

Either trace a module of your own (--model and --inputs, factories), or compute from a Hugging Face configuration
(--config, with --seq-len). Exit code 4 when the step does not fit the device."""
EPILOG = (
    "Examples: fastbudget estimate --config llama-3-8b --seq-len 4096 --hardware h100 --num-devices 8 "
    "--sharding zero3   ·   fastbudget estimate --model mymodel:build --inputs mymodel:batch --hardware a100-80gb "
    "--timeline memory.html"
)


def estimate_command(
    model: Annotated[str | None, typer.Option(help="package.module:factory of the model.")] = None,
    inputs: Annotated[str | None, typer.Option(help="package.module:factory of one micro-batch.")] = None,
    config: Annotated[str | None, typer.Option(help="config.json, or a preset such as llama-3-8b.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Tokens of a sequence, with --config.")] = None,
    micro_batch_size: Annotated[int, typer.Option(help="Sequences of one forward pass, with --config.")] = 1,
    global_batch_size: Annotated[
        int | None, typer.Option(help="Sequences of an optimizer step, with --config.", show_default="one per rank")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="h100, a100-80gb, …; cpu; cuda.", show_default="what is here")
    ] = None,
    num_devices: Annotated[int, typer.Option(help="All devices.")] = 1,
    tensor_parallel: Annotated[int, typer.Option(help="With --config.")] = 1,
    pipeline_parallel: Annotated[int, typer.Option(help="With --config.")] = 1,
    context_parallel: Annotated[int, typer.Option(help="With --config.")] = 1,
    expert_parallel: Annotated[int, typer.Option(help="With --config.")] = 1,
    sharding: Annotated[str, typer.Option(help="none, zero1, zero2, zero3.")] = "none",
    offload: Annotated[str, typer.Option(help="none, optimizer; all with --config.")] = "none",
    optimizer: Annotated[
        str, typer.Option(help="adamw, adamw-8bit, sgd, sgd-momentum, adafactor, lion, muon.")
    ] = "adamw",
    precision: Annotated[str, typer.Option(help="fp32, bf16-mixed, fp16-mixed, bf16.")] = "bf16-mixed",
    recompute: Annotated[str, typer.Option(help="none, full; module with --model; selective with --config.")] = "none",
    grad_accumulation: Annotated[int, typer.Option(help="Micro-batches per step, with --model.")] = 1,
    mode: Annotated[str, typer.Option(help="train, infer, decode.")] = "train",
    largest_micro_batch: Annotated[
        bool, typer.Option("--largest-micro-batch", help="Search it for a traced module too; takes several traces.")
    ] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write memory over time to .html or .png, with --model.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Estimate a step."""
    if (model is None) == (config is None):
        raise typer.BadParameter("give either --model (with --inputs) or --config.")
    if model is not None and inputs is None:
        raise typer.BadParameter("--model needs --inputs, a factory of one micro-batch.")
    if config is not None and seq_len is None:
        raise typer.BadParameter("--config needs --seq-len.")
    if config is not None and timeline is not None:
        raise typer.BadParameter("--timeline needs a traced module: give --model.")
    with reported(json):
        shared: dict[str, Any] = {
            "num_devices": num_devices,
            "tensor_parallel": tensor_parallel,
            "pipeline_parallel": pipeline_parallel,
            "context_parallel": context_parallel,
            "expert_parallel": expert_parallel,
            "sharding": sharding,
            "offload": offload,
            "optimizer": optimizer,
            "precision": precision,
            "recompute": recompute,
            "mode": mode,
        }
        if config is not None:
            from ..cost import estimate_transformer

            ranks = max(1, num_devices // max(1, tensor_parallel * pipeline_parallel * context_parallel))
            found = estimate_transformer(
                config,
                seq_len=int(seq_len or 0),
                micro_batch_size=micro_batch_size,
                global_batch_size=global_batch_size or micro_batch_size * ranks,
                hardware=_needed(hardware),
                **shared,
            )
            document = _transformer_document(found)
        else:
            traced = _traced(str(model), str(inputs), hardware, grad_accumulation, shared, timeline)
            document = _traced_document(traced, largest_micro_batch)
        if json:
            print_json(document)
        else:
            _print(document)
    if document["memory"]["fits"] == "no":
        raise typer.Exit(REFUSED)


def _needed(hardware: str | None) -> str:
    from ..core.errors import InvalidInputError

    if hardware is None:
        raise InvalidInputError("--config needs --hardware, the accelerator; `fastbudget hardware` lists them.")
    return hardware


def _traced(
    model: str,
    inputs: str,
    hardware: str | None,
    grad_accumulation: int,
    shared: dict[str, Any],
    timeline: Path | None,
) -> Estimate:
    from ..cost import CATEGORIES, PHASES, estimate
    from ..report import write_memory_timeline
    from ..workflow import call_factory, import_factory

    here = Path.cwd()
    build, batch = import_factory(model, "model", here), import_factory(inputs, "inputs", here)
    found = estimate(
        lambda: call_factory(build, model, "model"),
        lambda: call_factory(batch, inputs, "inputs"),
        hardware=hardware,
        grad_accumulation=grad_accumulation,
        **shared,
    )
    if timeline is not None:
        lines = found.memory.timeline
        title = f"Memory of a step of {model}"
        write_memory_timeline(timeline, CATEGORIES, lines.category_bytes, PHASES, lines.phase, title)
    return found


def _traced_document(found: Estimate, largest: bool) -> dict[str, Any]:
    from dataclasses import asdict

    memory = found.memory
    return {
        "num_params": found.num_params,
        "num_trainable_params": found.num_trainable_params,
        "forward_flops": found.forward_flops,
        "step_flops": found.step_flops,
        "memory": {
            **_four_numbers(memory),
            "phase_at_peak": memory.phase_at_peak,
            "largest_micro_batch": memory.largest_micro_batch if largest else None,
            "largest_at_peak": [asdict(tensor) for tensor in memory.largest_at_peak],
        },
    }


def _transformer_document(found: TransformerEstimate) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "num_params": found.num_params,
        "num_active_params": found.num_active_params,
        "step_flops": found.step_flops,
        "memory": {
            **_four_numbers(found.memory),
            "largest_micro_batch": found.memory.largest_micro_batch,
            "per_stage": [asdict(stage) for stage in found.memory.per_stage],
        },
    }


def _four_numbers(memory: Any) -> dict[str, Any]:
    names = ("allocated_bytes", "active_bytes", "reserved_bytes", "device_bytes", "capacity_bytes", "fits", "margin")
    return {name: getattr(memory, name) for name in (*names, "by_category")} | {"notes": list(memory.notes)}


def _print(document: dict[str, Any]) -> None:
    from ..core.units import format_bytes, format_count

    memory = document["memory"]
    typer.echo(f"parameters          {document['num_params']:,}")
    typer.echo(f"operations per step {format_count(document['step_flops'], 'FLOPs')}")
    for name in ("allocated", "active", "reserved", "device", "capacity"):
        value = memory[f"{name}_bytes"]
        if value is not None:
            typer.echo(f"{name:19} {format_bytes(value)}")
    if memory["fits"] is not None:
        typer.echo(f"fits                {memory['fits']} (margin {memory['margin']:.0%})")
    if memory["largest_micro_batch"] is not None:
        typer.echo(f"largest micro-batch {memory['largest_micro_batch']}")
    typer.echo("at the peak:")
    for name, value in memory["by_category"].items():
        if value:
            typer.echo(f"  {name:17} {format_bytes(value)}")
    for tensor in memory.get("largest_at_peak", [])[:5]:
        owner = tensor["module"] or "the model"
        typer.echo(f"  {format_bytes(tensor['size_bytes']):>12} {tensor['category']} of {owner}")
    stages = memory.get("per_stage", [])
    for stage in stages if len(stages) > 1 else []:
        typer.echo(f"  stage {stage['stage']}: {stage['layers']} layers, {format_bytes(stage['device_bytes'])}")
    for note in memory["notes"]:
        typer.echo(f"note: {note}")
