"""DeepSpeed's JSON configuration.

Its keys: deepspeed.ai/docs/config-json; how it fills in batch sizes and offload: deepspeed/runtime/config.py and
deepspeed/runtime/zero/config.py at github.com/deepspeedai/DeepSpeed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ...core.durable_files import write_durably
from ...core.errors import ConfigurationError, InvalidInputError
from ..transformer.training_layout import TrainingLayout
from .launch_config import LaunchConfig, is_true, whole_number

# What the Hugging Face Trainer and accelerate put where the file says "auto".
_AUTO = {
    "train_batch_size": "micro-batch x accumulation x devices",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size of the Trainer, or the data loader's batch size",
    "gradient_accumulation_steps": "gradient_accumulation_steps of the Trainer or Accelerator",
    "bf16": "bf16 of the Trainer, or accelerate's mixed_precision",
    "fp16": "fp16 of the Trainer, or accelerate's mixed_precision",
}
_SHARDINGS = ("none", "zero1", "zero2", "zero3")
_PRECISIONS = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}


def from_deepspeed(values: Mapping[str, Any], source: str) -> LaunchConfig:
    """Return what a DeepSpeed configuration says.

    Args:
        values: The file's contents.
        source: The file's name, for errors.

    Raises:
        ConfigurationError: a value makes no sense, or asks for what layouts can't say.
    """
    notes: list[str] = []

    def size(key: str) -> int | None:
        value = values.get(key)
        if value == "auto":
            notes.append(f"{key} is 'auto': {_AUTO[key]}.")
        return None if value in (None, "auto") else whole_number(value, key, source)

    batch, micro = size("train_batch_size"), size("train_micro_batch_size_per_gpu")
    steps = size("gradient_accumulation_steps")
    if steps is None and values.get("gradient_accumulation_steps") is None and (batch is None or micro is None):
        steps = 1  # DeepSpeed's default where two of the three sizes don't give it
    tensor = values.get("tensor_parallel", {})
    if isinstance(tensor, Mapping) and tensor.get("autotp_size", 1) not in (0, 1):
        raise ConfigurationError(
            f"{source}: tensor_parallel.autotp_size is not read; DeepSpeed's AutoTP isn't modeled."
        )
    zero = values.get("zero_optimization", {})
    if not isinstance(zero, Mapping):
        zero = {"stage": 1 if is_true(zero) else 0}  # the form of the first versions
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise ConfigurationError(f"{source}: zero_optimization.stage must be 0, 1, 2 or 3, got {stage!r}.")
    notes += [
        f"zero_optimization.{key} is not modeled: states are taken to be sharded over all devices."
        for key in ("mics_shard_size", "zero_hpz_partition_size")
        if isinstance(zero.get(key), int) and zero[key] > 1
    ]
    half = values.get("bf16")
    if isinstance(half, Mapping) and is_true(half.get("bf16_master_weights_and_grads", False)):
        notes.append("bf16.bf16_master_weights_and_grads is not modeled: master weights are taken to be float32.")
    return LaunchConfig(
        framework="deepspeed",
        num_devices=_devices(batch, micro, steps, source),
        sharding=_SHARDINGS[stage],
        offload=_offload(zero, source),
        precision=_precision(values, source, notes),
        micro_batch_size=micro,
        grad_accumulation=steps,
        global_batch_size=batch,
        notes=tuple(notes),
    )


def _devices(batch: int | None, micro: int | None, steps: int | None, source: str) -> int | None:
    """All devices, where the three sizes are given: batch = micro-batch x accumulation x devices."""
    if batch is None or micro is None or steps is None:
        return None
    if batch % (micro * steps):
        raise ConfigurationError(
            f"{source}: train_batch_size ({batch}) must be a multiple of train_micro_batch_size_per_gpu x "
            f"gradient_accumulation_steps = {micro} x {steps}."
        )
    return batch // (micro * steps)


def _offload(zero: Mapping[str, Any], source: str) -> str:
    def device(key: str, *deprecated: str) -> bool:
        value = zero.get(key)
        if value is None:
            return any(is_true(zero.get(old, False)) for old in deprecated)
        where = value.get("device") or "none" if isinstance(value, Mapping) else value
        if where not in ("none", "cpu", "nvme"):
            raise ConfigurationError(
                f"{source}: zero_optimization.{key}.device must be 'none', 'cpu' or 'nvme', got {where!r}."
            )
        return where != "none"

    if device("offload_param", "cpu_offload_param", "cpu_offload_params"):
        return "all"
    return "optimizer" if device("offload_optimizer", "cpu_offload") else "none"


def _precision(values: Mapping[str, Any], source: str, notes: list[str]) -> str | None:
    enabled = {}
    for key in ("bf16", "fp16"):
        section = values.get(key, values.get("bfloat16", {}) if key == "bf16" else {})
        enabled[key] = section.get("enabled", False) if isinstance(section, Mapping) else section
    automatic = [key for key, value in enabled.items() if value == "auto"]
    chosen = [key for key, value in enabled.items() if value != "auto" and is_true(value)]
    if len(chosen) == 2:
        raise ConfigurationError(f"{source}: bf16 and fp16 are both enabled; choose one.")
    if chosen:
        return f"{chosen[0]}-mixed"
    notes += [f"{key}.enabled is 'auto': {_AUTO[key]}." for key in automatic]
    return None if automatic else "fp32"


def deepspeed_values(layout: TrainingLayout) -> dict[str, Any]:
    """Return a layout as a DeepSpeed configuration.

    Raises:
        InvalidInputError: DeepSpeed's file can't say it.
    """
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"):
        if getattr(layout, name) > 1:
            raise InvalidInputError(
                f"A DeepSpeed file written here can't say {name}={getattr(layout, name)}: it holds data parallelism. "
                "Plan with framework='deepspeed', which tries nothing else, or write a torchrun command."
            )
    if layout.precision not in ("fp32", *_PRECISIONS):
        raise InvalidInputError(
            f"A DeepSpeed file can't say precision={layout.precision!r}; it knows fp32, bf16-mixed and fp16-mixed."
        )
    if layout.offload != "none" and layout.sharding == "none":
        raise InvalidInputError("DeepSpeed offloads only with sharding 'zero1', 'zero2' or 'zero3', got 'none'.")
    if layout.offload == "all" and layout.sharding != "zero3":
        raise InvalidInputError(f"DeepSpeed offloads parameters only with sharding 'zero3', got {layout.sharding!r}.")
    zero: dict[str, Any] = {"stage": _SHARDINGS.index(layout.sharding)}
    if layout.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    values: dict[str, Any] = {
        "train_batch_size": layout.global_batch_size,
        "train_micro_batch_size_per_gpu": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.micro_batches,
        "zero_optimization": zero,
    }
    if layout.precision in _PRECISIONS:
        values[_PRECISIONS[layout.precision]] = {"enabled": True}
    return values


def write_deepspeed(path: str | PathLike[str], layout: TrainingLayout) -> tuple[str, ...]:
    """Write a layout as a DeepSpeed configuration.

    Returns:
        What the training script has to set itself.

    Raises:
        InvalidInputError: DeepSpeed's file can't say it.
    """
    write_durably(Path(path), (json.dumps(deepspeed_values(layout), indent=2) + "\n").encode())
    return (f"sequence length {layout.seq_len}", f"optimizer {layout.optimizer}", *_recompute_note(layout))


def _recompute_note(layout: TrainingLayout) -> tuple[str, ...]:
    # The section "activation_checkpointing" tunes checkpointing but doesn't turn it on.
    if layout.recompute == "none":
        return ()
    return (f"{layout.recompute} recompute of activations (gradient_checkpointing)",)
