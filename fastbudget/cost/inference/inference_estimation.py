"""``fb.estimate_inference``: time, memory and price of generating text with a transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ...core.errors import InvalidInputError
from ...core.interval import Interval
from ...hardware.devices import Device, find_device
from ...hardware.prices import Price, price_for
from ..runtime.calibration import Calibration, read_calibration
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_config import read_transformer
from ..transformer.transformer_memory import TransformerMemory, estimate_transformer_memory
from ..transformer.transformer_shape import TransformerShape
from .replica_speed import BatchSpeed, Replica, kv_cache_bytes

PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class InferenceEstimate:
    """What it takes to answer a batch of requests on one replica. Intervals hold 80%, but see ``extrapolating``.

    Attributes:
        prefill_s: seconds to read the prompts: the time to the first token.
        decode_step_s: seconds of a token for every sequence, the mean over the output.
        request_s: seconds from the prompts to the last token.
        output_tokens_per_s: tokens made per second of the whole, per replica.
        output_tokens_per_s_per_device: the same per device.
        kv_cache_bytes: keys and values of the batch at its full length, over the replica's devices.
        weight_bytes: parameters, over the replica's devices.
        usd_per_million_input_tokens: what reading a million prompt tokens costs; None where no price is known.
        usd_per_million_output_tokens: what making a million tokens costs.
        by_batch: the same for 1, 2, 4, ... sequences, as far as they fit.
        price: of one device for an hour, and where it comes from; None where none is known.
        memory: peak memory of a device at full length, and whether it fits.
        largest_batch: most sequences of full length that fit; 0: none.
        extrapolating: what lies outside the runs that the time model was fitted on, each in words.
        notes: what was assumed.
        shape: the model's shape.
        device: what it runs on.
        num_devices: devices of a replica.
    """

    prefill_s: Interval
    decode_step_s: Interval
    request_s: Interval
    output_tokens_per_s: Interval
    output_tokens_per_s_per_device: Interval
    kv_cache_bytes: int
    weight_bytes: int
    usd_per_million_input_tokens: Interval | None
    usd_per_million_output_tokens: Interval | None
    by_batch: tuple[BatchSpeed, ...]
    price: Price | None
    memory: TransformerMemory
    largest_batch: int
    extrapolating: tuple[str, ...]
    notes: tuple[str, ...]
    shape: TransformerShape
    device: Device
    num_devices: int


def estimate_inference(
    config: str | PathLike[str] | Mapping[str, Any] | TransformerShape,
    *,
    hardware: str | Device,
    prompt_len: int,
    output_len: int,
    batch_size: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: int = 1,
    precision: str = "bf16",
    cuda_graphs: bool = True,
    software: str | None = None,
    calibration: Calibration | str | PathLike[str] | None = None,
    price: float | str | PathLike[str] | None = None,
) -> InferenceEstimate:
    """Estimate prefill, decoding, memory and the price of tokens, for a batch that starts and ends together.

    Reading the prompts is a forward pass over them; making a token reads the weights and the cache once for the
    whole batch. The constants were fitted on training runs, so the intervals are wide.

    Args:
        config: a Hugging Face ``config.json`` (path or contents) or a preset such as ``"llama-3-8b"``.
        hardware: the accelerator's name.
        prompt_len: tokens of each prompt.
        output_len: tokens made for each.
        batch_size: sequences answered at once.
        tensor_parallel: devices that share each layer.
        pipeline_parallel: stages; a token passes them one after the other.
        expert_parallel: devices that share the experts, among those of ``tensor_parallel``.
        precision: of weights and cache: ``"bf16"``, ``"fp16"`` or ``"fp32"``.
        cuda_graphs: kernels are launched as one graph, as serving engines do; else the host launches each.
        software: what runs it, free-form.
        calibration: a measured machine, or its file.
        price: USD of one device for an hour, a provider's name, or a file of prices; None: the price table.

    Raises:
        InvalidInputError: a name is unknown, a size makes no sense, the model has no causal decoder, or sizes don't
            divide.
    """
    shape, device = read_transformer(config), find_device(hardware)
    for name, value in (("prompt_len", prompt_len), ("output_len", output_len), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise InvalidInputError(f"{name} must be an integer of at least 1, got {value!r}.")
    if precision not in PRECISIONS:
        raise InvalidInputError(
            f"precision must be one of {', '.join(PRECISIONS)} for inference, got {precision!r}. "
            "Weights in fewer bits are not modeled."
        )
    if not shape.causal or not shape.has_head:
        raise InvalidInputError(f"A {shape.family} model does not generate text: give a causal model with a head.")
    num_devices = tensor_parallel * pipeline_parallel
    replica = Replica(
        shape=shape,
        device=device,
        layout=TrainingLayout(
            seq_len=prompt_len,
            global_batch_size=1,
            num_devices=num_devices,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
            expert_parallel=expert_parallel,
            precision=precision,
            compiled=True,
            mode="infer",
        ),
        output_len=output_len,
        cuda_graphs=cuda_graphs,
        software=software,
        calibration=read_calibration(calibration),
    )
    replica.layout.check(shape)
    paid = price_for(device, price)
    speed = replica.speed(batch_size, paid)
    full = replica.decoding(batch_size, prompt_len + output_len)
    memory = estimate_transformer_memory(shape, full, device)
    largest = memory.largest_micro_batch
    return InferenceEstimate(
        **{name: value for name, value in vars(speed).items() if name != "batch_size"},
        by_batch=tuple(replica.speed(2**power, paid) for power in range(largest.bit_length())),
        kv_cache_bytes=kv_cache_bytes(shape, full),
        weight_bytes=shape.num_params * full.compute_bytes,
        price=paid,
        memory=memory,
        largest_batch=largest,
        extrapolating=replica.extrapolating(),
        notes=_notes(shape, cuda_graphs=cuda_graphs, pipeline=pipeline_parallel > 1),
        shape=shape,
        device=device,
        num_devices=num_devices,
    )


def _notes(shape: TransformerShape, *, cuda_graphs: bool, pipeline: bool) -> tuple[str, ...]:
    notes = [
        "The batch starts and ends together; continuous batching keeps a replica as busy with requests of any length.",
        "Memory is that of decoding at full length: long prompts are taken to be read in chunks.",
        "Kernels are launched as CUDA graphs." if cuda_graphs else "The host launches each kernel.",
    ]
    if pipeline:
        notes.append("One batch passes the stages in turn; several batches in flight make more tokens per second.")
    if any(block.mlp.experts for block in shape.all_blocks):
        notes.append("Tokens are assumed to spread evenly over the experts.")
    return tuple(notes)
