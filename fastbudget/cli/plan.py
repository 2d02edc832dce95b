"""`fastbudget plan`: the cheapest or fastest devices and layout for a training job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .estimate_documents import job_of, prices_of
from .outcomes import REFUSED, print_json, reported

if TYPE_CHECKING:
    from ..cost import Candidate, Plan

HELP = (
    "Search devices, parallelism, micro-batch, recompute and precision for the cheapest or fastest way to train.\n\n"
    "What fits has memory to spare, and the upper end of the whole job's 80% interval, its buffer for surprises "
    'included, is within budget and deadline; where only the middle is, it is "at risk". Exit code 4 when nothing '
    "fits; the nearest miss is shown with its number."
)
EPILOG = (
    "Example: fastbudget plan llama-3-8b --tokens 1e12 --seq-len 8192 --global-batch 1024 --hardware h100-sxm "
    "--hardware a100-80gb --max-devices 512 --max-usd 2e6 --deadline-hours 720 --plot front.svg "
    "--write-accelerate accelerate.yaml"
)


def plan_command(
    config: Annotated[str, typer.Argument(help="config.json, or a preset such as llama-3-8b.")],
    seq_len: Annotated[int, typer.Option(help="Tokens of a sequence.")],
    global_batch: Annotated[
        int, typer.Option("--global-batch", "--global-batch-size", help="Sequences of an optimizer step.")
    ],
    hardware: Annotated[
        list[str] | None, typer.Option(help="An accelerator; repeat for several.", show_default="none: required")
    ] = None,
    tokens: Annotated[float | None, typer.Option(help="Useful tokens of an epoch.")] = None,
    examples: Annotated[int | None, typer.Option(help="Examples of an epoch, instead of --tokens.")] = None,
    tokens_per_example: Annotated[float | None, typer.Option(help="Mean useful tokens of an example.")] = None,
    packed: Annotated[bool, typer.Option("--packed", help="Examples are packed into sequences.")] = False,
    epochs: Annotated[float, typer.Option(help="Passes over the data.")] = 1.0,
    augmentation: Annotated[float, typer.Option(help="Variants of each example.")] = 1.0,
    padding_waste: Annotated[float | None, typer.Option(help="Share of positions without a useful token.")] = None,
    objective: Annotated[str, typer.Option(help="cost or time.")] = "cost",
    max_devices: Annotated[int | None, typer.Option(help="The most devices.", show_default="1024")] = None,
    device_count: Annotated[
        list[int] | None, typer.Option(help="Exactly so many devices; repeat for several.", show_default="usual ones")
    ] = None,
    max_usd: Annotated[float | None, typer.Option(help="Money for the whole job.")] = None,
    max_gpu_hours: Annotated[float | None, typer.Option(help="Device-hours for the whole job.")] = None,
    max_wall_hours: Annotated[float | None, typer.Option(help="Hours on the clock, as part of the budget.")] = None,
    max_kwh: Annotated[float | None, typer.Option(help="Electricity for the whole job.")] = None,
    deadline_hours: Annotated[float | None, typer.Option(help="Hours until it must be done.")] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="bf16-mixed, fp8-mixed, …; repeat to compare.", show_default="bf16-mixed")
    ] = None,
    recompute: Annotated[
        list[str] | None, typer.Option(help="none, selective, full; repeat.", show_default="all")
    ] = None,
    sharding: Annotated[
        list[str] | None, typer.Option(help="none, zero1, zero2, zero3; repeat.", show_default="all")
    ] = None,
    micro_batch_size: Annotated[list[int] | None, typer.Option(help="Repeat.", show_default="1, 2, … 64")] = None,
    tensor_parallel: Annotated[list[int] | None, typer.Option(help="Repeat.", show_default="1 to 8")] = None,
    pipeline_parallel: Annotated[list[int] | None, typer.Option(help="Repeat.", show_default="1 to 32")] = None,
    virtual_pipeline: Annotated[list[int] | None, typer.Option(help="Repeat.", show_default="1, 2, 4")] = None,
    context_parallel: Annotated[
        list[int] | None, typer.Option(help="Repeat.", show_default="1; 1 to 8 if long")
    ] = None,
    expert_parallel: Annotated[list[int] | None, typer.Option(help="Repeat.", show_default="1 to 8 for MoE")] = None,
    optimizer: Annotated[
        str, typer.Option(help="adamw, adamw-8bit, sgd, sgd-momentum, adafactor, lion, muon.")
    ] = "adamw",
    lora_rank: Annotated[int | None, typer.Option(help="Train adapters of this rank.")] = None,
    quantized_base: Annotated[bool, typer.Option("--quantized-base", help="Frozen weights in 4 bits.")] = False,
    compiled: Annotated[bool, typer.Option("--compiled", help="With torch.compile.")] = False,
    framework: Annotated[
        str | None,
        typer.Option(help="pytorch, deepspeed, megatron.", show_default="pytorch; deepspeed with --write-deepspeed"),
    ] = None,
    software: Annotated[str | None, typer.Option(help='What trains, such as "NeMo 25.04".')] = None,
    calibration: Annotated[Path | None, typer.Option(help="What `fastbudget calibrate` wrote.")] = None,
    evaluations: Annotated[int | None, typer.Option(help="Evaluations of the job.")] = None,
    evaluation_tokens: Annotated[int | None, typer.Option(help="Tokens of one evaluation.")] = None,
    checkpoint_every_steps: Annotated[
        int | None, typer.Option(help="Steps between checkpoints.", show_default="Young/Daly")
    ] = None,
    buffer: Annotated[float, typer.Option(help="Share added for tuning and surprises.")] = 0.25,
    usd_per_device_hour: Annotated[float | None, typer.Option(help="Your price of one device.")] = None,
    provider: Annotated[str | None, typer.Option(help="Whose price, such as nebius.", show_default="median")] = None,
    prices: Annotated[Path | None, typer.Option(help="Your prices, .toml or .yaml.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Spot devices: cheaper, and interrupted.")] = False,
    whole_nodes: Annotated[bool, typer.Option("--whole-nodes", help="Idle devices of a node are paid too.")] = False,
    region: Annotated[str, typer.Option(help="Whose electricity: world, usa, france, …")] = "world",
    plot: Annotated[Path | None, typer.Option(help="Draw cost over hours, .svg, .png or .html.")] = None,
    write_torchrun: Annotated[Path | None, typer.Option(help="Write the best layout as a torchrun command.")] = None,
    write_accelerate: Annotated[Path | None, typer.Option(help="Write it as accelerate's configuration.")] = None,
    write_deepspeed: Annotated[Path | None, typer.Option(help="Write it as DeepSpeed's JSON.")] = None,
    script: Annotated[str, typer.Option(help="Your training script, for --write-torchrun.")] = "train.py",
    top: Annotated[int, typer.Option(help="Rows of the table.")] = 12,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Plan a job."""
    with reported(json):
        from .. import cost

        job = job_of(
            config=config,
            tokens=tokens,
            examples=examples,
            tokens_per_example=tokens_per_example,
            packed=packed,
            epochs=epochs,
            augmentation=augmentation,
            padding_waste=padding_waste,
            seq_len=seq_len,
            global_batch_size=global_batch,
            precision=precision[0] if precision else "bf16-mixed",
            optimizer=optimizer,
            lora_rank=lora_rank,
            quantized_base=quantized_base,
            compiled=compiled,
            evaluations=evaluations,
            evaluation_tokens=evaluation_tokens,
            checkpoint_every_steps=checkpoint_every_steps,
            buffer=buffer,
        )
        limits = {"usd": max_usd, "gpu_hours": max_gpu_hours, "wall_hours": max_wall_hours, "kwh": max_kwh}
        found = cost.plan(
            job,
            hardware=hardware,
            max_devices=max_devices,
            device_counts=device_count,
            budget={name: value for name, value in limits.items() if value is not None},
            deadline_hours=deadline_hours,
            objective=objective,
            precisions=precision,
            recomputes=recompute,
            shardings=sharding,
            micro_batch_sizes=micro_batch_size,
            tensor_parallels=tensor_parallel,
            pipeline_parallels=pipeline_parallel,
            virtual_pipelines=virtual_pipeline,
            context_parallels=context_parallel,
            expert_parallels=expert_parallel,
            framework=framework or ("deepspeed" if write_deepspeed else "pytorch"),
            software=software,
            calibration=calibration,
            price=prices_of(usd_per_device_hour, provider, prices),
            conditions=cost.JobConditions(spot=spot, whole_nodes=whole_nodes, region=region),
        )
        document = found.to_json()
        if found.best is not None:
            if plot is not None:
                from ..report import write_pareto_chart

                write_pareto_chart(plot, document)
            document["written"] = _written(found.best, script, write_torchrun, write_accelerate, write_deepspeed)
        if json:
            print_json(document)
        else:
            _show(found, document, top)
    if found.best is None:
        raise typer.Exit(REFUSED)


def _written(
    best: Candidate, script: str, torchrun: Path | None, accelerate: Path | None, deepspeed: Path | None
) -> dict[str, list[str]]:
    """Write the launchers' files; return what each leaves to the training script."""
    written = {}
    if torchrun is not None:
        best.to_torchrun(torchrun, script)
        written[str(torchrun)] = ["what FASTBUDGET_LAYOUT says, a variable with the layout as JSON"]
    if accelerate is not None:
        written[str(accelerate)] = list(best.to_accelerate(accelerate))
    if deepspeed is not None:
        written[str(deepspeed)] = list(best.to_deepspeed(deepspeed))
    return written


def _show(found: Plan, document: dict[str, Any], top: int) -> None:
    from rich.console import Console
    from rich.text import Text

    from ..report import front_table

    console = Console()

    def say(label: str, text: str) -> None:
        console.print(Text.assemble((f"{label}: ", "bold"), text), soft_wrap=not console.is_terminal)

    if found.best is None:
        say("Nothing fits", found.nearest_miss.text if found.nearest_miss else "")
    else:
        console.print(front_table(document, top))
        say("Why", found.why_best)
        say("What binds next", found.next_constraint)
    left = ", ".join(f"{count:,} {reason}" for reason, count in found.rejected.items())
    say("Searched", f"{found.num_layouts:,} layouts that can run; left out: {left}")
    for path, notes in document.get("written", {}).items():
        say(f"Wrote {path}", f"your script sets {'; '.join(notes)}")
    for note in found.notes:
        say("Note", note)
