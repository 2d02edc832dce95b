"""What `fastbudget estimate` finds, as JSON documents."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..cost import BatchSpeed, Estimate, InferenceEstimate, TrainingJob

_SPEEDS = (
    "prefill_s",
    "decode_step_s",
    "request_s",
    "output_tokens_per_s",
    "output_tokens_per_s_per_device",
    "usd_per_million_input_tokens",
    "usd_per_million_output_tokens",
)

_LARGEST_SHOWN = 10


def traced_estimate(model: str, inputs: str, timeline: Path | None, **arguments: Any) -> Estimate:
    """Trace a module given by its factories; the arguments are those of ``fb.estimate``."""
    from ..cost import CATEGORIES, PHASES, estimate
    from ..report import write_memory_timeline
    from ..workflow import call_factory, import_factory

    here = Path.cwd()
    build, batch = import_factory(model, "model", here), import_factory(inputs, "inputs", here)
    found = estimate(
        lambda: call_factory(build, model, "model"),
        lambda: call_factory(batch, inputs, "inputs"),
        **arguments,
    )
    if timeline is not None:
        lines = found.memory.timeline
        title = f"Memory of a step of {model}"
        write_memory_timeline(timeline, CATEGORIES, lines.category_bytes, PHASES, lines.phase, title)
    return found


def traced_document(found: Estimate, largest: bool) -> dict[str, Any]:
    """Return what a traced module needs; of the operations and modules, those that take the most time."""
    memory = found.memory
    time = {name: getattr(found, name) for name in ("step_time_s", "mfu", "hfu")}
    return {
        "num_params": found.num_params,
        "num_trainable_params": found.num_trainable_params,
        "forward_flops": found.forward_flops,
        "step_flops": found.step_flops,
        **{name: None if value is None else value.to_json() for name, value in time.items()},
        "time_parts": found.time_parts,
        "time_by_operation": dict(list(found.time_by_operation.items())[:_LARGEST_SHOWN]),
        "time_by_module": dict(list(found.time_by_module.items())[:_LARGEST_SHOWN]),
        "extrapolating": list(found.extrapolating),
        "memory": {
            **_four_numbers(memory),
            "phase_at_peak": memory.phase_at_peak,
            "largest_micro_batch": memory.largest_micro_batch if largest else None,
            "largest_at_peak": [asdict(tensor) for tensor in memory.largest_at_peak],
        },
    }


def prices_of(
    usd_per_device_hour: float | None, provider: str | None, prices: Path | None
) -> float | str | Path | None:
    """Return the one price asked for.

    Raises:
        InvalidInputError: several were given.
    """
    from ..core.errors import InvalidInputError

    given = [value for value in (usd_per_device_hour, provider, prices) if value is not None]
    if len(given) > 1:
        raise InvalidInputError("Give one of --usd-per-device-hour, --provider and --prices.")
    return given[0] if given else None


def job_of(**fields: Any) -> TrainingJob:
    """Return the job to count."""
    from ..cost import TrainingJob

    return TrainingJob(**fields)


def transformer_document(
    config: str, job: TrainingJob | None, *, conditions: dict[str, Any], price: Any, **layout: Any
) -> dict[str, Any]:
    """Return what a step of a transformer takes, and with a job what all of it costs."""
    from ..cost import JobConditions, estimate_transformer, job_cost

    tokens = None if job is None else int(job.processed_tokens)
    found = estimate_transformer(config, tokens=tokens, price=price, **layout)
    hours = {"gpu_hours": found.gpu_hours, "wall_hours": found.wall_hours, "cost_usd": found.cost_usd}
    document = {
        "num_params": found.num_params,
        "num_active_params": found.num_active_params,
        "step_flops": found.step_flops,
        "total_flops": found.total_flops,
        "step_time_s": found.step_time_s.to_json(),
        "tokens_per_s_per_device": found.tokens_per_s_per_device.to_json(),
        "mfu": found.mfu.to_json(),
        "hfu": found.hfu.to_json(),
        **{name: None if value is None else value.to_json() for name, value in hours.items()},
        "price": None if found.price is None else found.price.to_json(),
        "time_parts": found.time_parts,
        "extrapolating": list(found.extrapolating),
        "num_devices": layout["num_devices"],
        "memory": {
            **_four_numbers(found.memory),
            "largest_micro_batch": found.memory.largest_micro_batch,
            "per_stage": [asdict(stage) for stage in found.memory.per_stage],
        },
        "job": None,
    }
    if job is not None:
        of_the_job = ("config", "seq_len", "global_batch_size", "precision", "optimizer", "lora_rank", "quantized_base")
        where = {name: value for name, value in layout.items() if name not in (*of_the_job, "mode")}
        document["job"] = job_cost(job, conditions=JobConditions(price=price, **conditions), **where).to_json()
    return document


def inference_document(config: str, **arguments: Any) -> dict[str, Any]:
    """Return what generating text takes and costs."""
    from ..cost import estimate_inference

    found = estimate_inference(config, **arguments)
    return {
        "num_params": found.shape.num_params,
        "num_active_params": found.shape.num_active_params,
        **_speed(found),
        "by_batch": [{"batch_size": speed.batch_size, **_speed(speed)} for speed in found.by_batch],
        "kv_cache_bytes": found.kv_cache_bytes,
        "weight_bytes": found.weight_bytes,
        "largest_batch": found.largest_batch,
        "price": None if found.price is None else found.price.to_json(),
        "extrapolating": list(found.extrapolating),
        "notes": list(found.notes),
        "num_devices": found.num_devices,
        "memory": {**_four_numbers(found.memory), "largest_micro_batch": found.largest_batch},
    }


def _speed(speed: InferenceEstimate | BatchSpeed) -> dict[str, Any]:
    values = {name: getattr(speed, name) for name in _SPEEDS}
    return {name: None if value is None else value.to_json() for name, value in values.items()}


def claim_document(text: str) -> dict[str, Any]:
    """Return whether a claim can be true."""
    from ..cost import check_claim

    return check_claim(text).to_json()


def _four_numbers(memory: Any) -> dict[str, Any]:
    names = ("allocated_bytes", "active_bytes", "reserved_bytes", "device_bytes", "capacity_bytes", "fits", "margin")
    return {name: getattr(memory, name) for name in (*names, "by_category")} | {"notes": list(memory.notes)}
