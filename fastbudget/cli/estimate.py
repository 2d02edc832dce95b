"""`fastbudget estimate`: memory, time and money of training or inference, before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .estimate_documents import (
    claim_document,
    inference_document,
    job_of,
    prices_of,
    traced_document,
    traced_estimate,
    transformer_document,
)
from .estimate_text import show_claim, show_estimate
from .outcomes import REFUSED, WRONG_USAGE, print_json, reported

HELP = """Predict what training takes without running it: memory, operations, time, GPU-hours, USD, kWh, CO2e.

Either trace a module of your own (--model and --inputs, factories), or compute from a Hugging Face configuration
(--config, with --seq-len); with --tokens the whole job is counted, from start-up to the buffer for surprises.
--mode decode estimates generating text. --check tells whether somebody's figures can be true.
Exit code 4 when the step does not fit the device, or the check says no."""
EPILOG = (
    "Examples: fastbudget estimate --config llama-3-8b --seq-len 4096 --hardware h100 --num-devices 8 "
    "--sharding zero3 --tokens 1e9   ·   fastbudget estimate --model mymodel:build --inputs mymodel:batch "
    "--hardware a100-80gb --timeline memory.html   ·   "
    'fastbudget estimate --check "150 ms/step, 8xA100, 524288 tokens/step, 124M"'
)
_OUTPUT_LEN = 256


def estimate_command(
    model: Annotated[str | None, typer.Option(help="package.module:factory of the model.")] = None,
    inputs: Annotated[str | None, typer.Option(help="package.module:factory of one micro-batch.")] = None,
    config: Annotated[str | None, typer.Option(help="config.json, or a preset such as llama-3-8b.")] = None,
    check: Annotated[str | None, typer.Option(help="A claim to check, in words and figures.")] = None,
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
    virtual_pipeline: Annotated[int, typer.Option(help="With --config.")] = 1,
    context_parallel: Annotated[int, typer.Option(help="With --config.")] = 1,
    expert_parallel: Annotated[int, typer.Option(help="With --config.")] = 1,
    sharding: Annotated[str, typer.Option(help="none, zero1, zero2, zero3.")] = "none",
    offload: Annotated[str, typer.Option(help="none, optimizer; all with --config.")] = "none",
    optimizer: Annotated[
        str, typer.Option(help="adamw, adamw-8bit, sgd, sgd-momentum, adafactor, lion, muon.")
    ] = "adamw",
    precision: Annotated[
        str, typer.Option(help="fp32, bf16-mixed, fp16-mixed, bf16; fp8-mixed with --config.")
    ] = "bf16-mixed",
    recompute: Annotated[str, typer.Option(help="none, full; module with --model; selective with --config.")] = "none",
    lora_rank: Annotated[int | None, typer.Option(help="Train adapters of this rank, with --config.")] = None,
    quantized_base: Annotated[bool, typer.Option("--quantized-base", help="Frozen weights in 4 bits.")] = False,
    grad_accumulation: Annotated[int, typer.Option(help="Micro-batches per step, with --model.")] = 1,
    mode: Annotated[str, typer.Option(help="train, infer, decode.")] = "train",
    prompt_len: Annotated[
        int | None, typer.Option(help="Tokens of a prompt, with --config and --mode decode.", show_default="--seq-len")
    ] = None,
    output_len: Annotated[int, typer.Option(help="Tokens made, with --config and --mode decode.")] = _OUTPUT_LEN,
    tokens: Annotated[float | None, typer.Option(help="Tokens of an epoch: counts the whole job.")] = None,
    examples: Annotated[int | None, typer.Option(help="Examples of an epoch, instead of --tokens.")] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the data.")] = 1.0,
    padding_waste: Annotated[float | None, typer.Option(help="Share of positions without a useful token.")] = None,
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
    software: Annotated[str | None, typer.Option(help='What trains, such as "NeMo 25.04".')] = None,
    calibration: Annotated[Path | None, typer.Option(help="What `fastbudget calibrate` wrote.")] = None,
    largest_micro_batch: Annotated[
        bool, typer.Option("--largest-micro-batch", help="Search it for a traced module too; takes several traces.")
    ] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write memory over time to .html or .png, with --model.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Estimate a step, a job or inference, or check a claim."""
    if sum(given is not None for given in (model, config, check)) != 1:
        raise typer.BadParameter("give either --model (with --inputs), --config or --check.")
    if check is not None:
        _check(check, json)
        return
    if model is not None and inputs is None:
        raise typer.BadParameter("--model needs --inputs, a factory of one micro-batch.")
    decoding = config is not None and mode == "decode"
    if config is not None and seq_len is None and not (decoding and prompt_len is not None):
        raise typer.BadParameter("--config needs --seq-len" + (" or --prompt-len." if decoding else "."))
    if config is not None and timeline is not None:
        raise typer.BadParameter("--timeline needs a traced module: give --model.")
    if config is None and (tokens is not None or examples is not None):
        raise typer.BadParameter("--tokens and --examples need --config.")
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
        if config is None:
            shared |= {"hardware": hardware, "grad_accumulation": grad_accumulation, "calibration": calibration}
            traced = traced_estimate(str(model), str(inputs), timeline, **shared)
            document = traced_document(traced, largest_micro_batch)
        else:
            device = _needed(hardware)
            price = prices_of(usd_per_device_hour, provider, prices)
            timing: dict[str, Any] = {"software": software, "calibration": calibration, "price": price}
            if decoding:
                document = inference_document(
                    config,
                    hardware=device,
                    prompt_len=prompt_len or int(seq_len or 0),
                    output_len=output_len,
                    batch_size=micro_batch_size,
                    tensor_parallel=tensor_parallel,
                    pipeline_parallel=pipeline_parallel,
                    expert_parallel=expert_parallel,
                    precision=precision.removesuffix("-mixed"),
                    **timing,
                )
            else:
                ranks = max(1, num_devices // max(1, tensor_parallel * pipeline_parallel * context_parallel))
                job = None
                batch = global_batch_size or micro_batch_size * ranks
                if tokens is not None or examples is not None:
                    job = job_of(
                        config=config,
                        seq_len=int(seq_len or 0),
                        global_batch_size=batch,
                        precision=precision,
                        optimizer=optimizer,
                        lora_rank=lora_rank,
                        quantized_base=quantized_base,
                        tokens=tokens,
                        examples=examples,
                        epochs=epochs,
                        padding_waste=padding_waste,
                        evaluations=evaluations,
                        evaluation_tokens=evaluation_tokens,
                        checkpoint_every_steps=checkpoint_every_steps,
                        buffer=buffer,
                    )
                document = transformer_document(
                    config,
                    job,
                    conditions={"spot": spot, "whole_nodes": whole_nodes, "region": region},
                    seq_len=int(seq_len or 0),
                    micro_batch_size=micro_batch_size,
                    global_batch_size=batch,
                    virtual_pipeline=virtual_pipeline,
                    hardware=device,
                    lora_rank=lora_rank,
                    quantized_base=quantized_base,
                    **timing,
                    **shared,
                )
        if json:
            print_json(document)
        else:
            show_estimate(document)
    if document["memory"]["fits"] == "no":
        raise typer.Exit(REFUSED)


def _check(text: str, json: bool) -> None:
    with reported(json):
        document = claim_document(text)
        if json:
            print_json(document)
        else:
            show_claim(document)
    if document["verdict"] == "unchecked":
        raise typer.Exit(WRONG_USAGE)
    if document["verdict"] != "plausible":
        raise typer.Exit(REFUSED)


def _needed(hardware: str | None) -> str:
    from ..core.errors import InvalidInputError

    if hardware is None:
        raise InvalidInputError("--config needs --hardware, the accelerator; `fastbudget hardware` lists them.")
    return hardware
