"""Accelerate's configuration file. Its keys: accelerate/commands/config/config_args.py and cluster.py (1.15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ...core.durable_files import write_durably
from ...core.errors import ConfigurationError, InvalidInputError
from ..transformer.training_layout import TrainingLayout
from .deepspeed_files import deepspeed_values, from_deepspeed
from .launch_config import LaunchConfig, is_true, read_json_or_yaml, whole_number
from .torchrun_command import nodes_for

_PRECISIONS = {"no": "fp32", "bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp8": "fp8-mixed"}
# FSDP version 1 by name or by the number of torch.distributed.fsdp.ShardingStrategy.
_STRATEGIES = {
    "FULL_SHARD": "zero3",
    "1": "zero3",
    "SHARD_GRAD_OP": "zero2",
    "2": "zero2",
    "NO_SHARD": "none",
    "3": "none",
}


def from_accelerate(values: Mapping[str, Any], source: Path) -> LaunchConfig:
    """Return what a configuration of accelerate says.

    Args:
        values: The file's contents.
        source: The file; a DeepSpeed file that it names is looked for in the working directory and beside it.

    Raises:
        ConfigurationError: a value makes no sense, or asks for what layouts can't say.
    """
    kind = str(values.get("distributed_type") or "NO")  # YAML takes a bare NO for false
    readers = {
        "NO": _plain,
        "MULTI_GPU": _plain,
        "FSDP": _fsdp,
        "DEEPSPEED": _deepspeed,
        "MEGATRON_LM": _megatron,
    }
    if kind not in readers or values.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise ConfigurationError(
            f"{source}: distributed_type {kind!r} in {values.get('compute_environment', 'LOCAL_MACHINE')} is not read; "
            f"known in LOCAL_MACHINE: {', '.join(readers)}."
        )
    found = readers[kind](values, source)
    devices = values.get("num_processes", 1 if kind == "NO" else None)
    # -1: given on the command line, as with Slurm.
    count = None if devices in (None, -1) else whole_number(devices, "num_processes", source)
    word = str(values.get("mixed_precision") or ("fp16" if values.get("fp16") else "no"))
    if word not in _PRECISIONS:
        raise ConfigurationError(f"{source}: mixed_precision must be one of {', '.join(_PRECISIONS)}, got {word!r}.")
    precision = _PRECISIONS[word]
    if found.framework == "deepspeed" and found.precision not in (None, "fp32"):
        precision = found.precision
    return replace(
        found,
        num_devices=found.num_devices if count is None else count,
        num_nodes=whole_number(values.get("num_machines", 1), "num_machines", source),
        precision=precision,
    )


def _plain(values: Mapping[str, Any], source: Path) -> LaunchConfig:
    return LaunchConfig(framework="pytorch")


def _fsdp(values: Mapping[str, Any], source: Path) -> LaunchConfig:
    section = _section(values, "fsdp_config", "fsdp_", source)
    version = str(section.get("version", 1))
    if version == "2":
        sharding = "zero3" if is_true(section.get("reshard_after_forward", True)) else "zero2"
    else:
        name = str(section.get("reshard_after_forward", section.get("sharding_strategy", "FULL_SHARD")))
        if name not in _STRATEGIES:
            raise ConfigurationError(
                f"{source}: fsdp_config: the strategy {name!r} shards over a part of the devices, which layouts can't "
                "say; known: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD."
            )
        sharding = _STRATEGIES[name]
    sizes = _section(values, "parallelism_config", "parallelism_config_", source)
    size = {
        name: whole_number(sizes.get(f"{name}_size", 1), name, source) for name in ("dp_replicate", "tp", "cp", "sp")
    }
    for name in ("dp_replicate", "sp"):
        if size[name] > 1:
            raise ConfigurationError(
                f"{source}: parallelism_config_{name}_size {size[name]} is not modeled; layouts shard over all "
                "data-parallel devices and know tensor and context parallelism."
            )
    shards = whole_number(sizes.get("dp_shard_size", 1), "dp_shard_size", source) * size["cp"]
    return LaunchConfig(
        framework="pytorch",
        tensor_parallel=size["tp"],
        context_parallel=size["cp"],
        sharding="none" if sizes and shards == 1 else sharding,
        offload="all" if is_true(section.get("offload_params", False)) else "none",
        recompute="full" if is_true(section.get("activation_checkpointing", False)) else "none",
    )


def _deepspeed(values: Mapping[str, Any], source: Path) -> LaunchConfig:
    section = _section(values, "deepspeed_config", "", source)
    named = section.get("deepspeed_config_file")
    if named and str(named) != "none":
        places = [Path(named), source.parent / named]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise ConfigurationError(f"{source}: deepspeed_config_file {named!r} doesn't exist.")
        return from_deepspeed(read_json_or_yaml(found), str(found))
    stage = section.get("zero_stage", 2)
    zero: dict[str, Any] = {"stage": int(stage) if str(stage).isdigit() else stage}
    for key in ("offload_optimizer", "offload_param"):
        if section.get(f"{key}_device", "none") != "none":
            zero[key] = {"device": section[f"{key}_device"]}
    steps = section.get("gradient_accumulation_steps", "auto")
    found = from_deepspeed({"zero_optimization": zero, "gradient_accumulation_steps": steps}, str(source))
    return replace(found, precision=None)  # accelerate's mixed_precision decides


def _megatron(values: Mapping[str, Any], source: Path) -> LaunchConfig:
    section = _section(values, "megatron_lm_config", "megatron_lm_", source)
    return LaunchConfig(
        framework="megatron",
        tensor_parallel=whole_number(section.get("tp_degree", 1), "megatron_lm_tp_degree", source),
        pipeline_parallel=whole_number(section.get("pp_degree", 1), "megatron_lm_pp_degree", source),
        sharding="zero1" if is_true(section.get("use_distributed_optimizer", False)) else "none",
        recompute="selective" if is_true(section.get("recompute_activations", False)) else "none",
        grad_accumulation=whole_number(section.get("num_micro_batches", 1), "megatron_lm_num_micro_batches", source),
    )


def _section(values: Mapping[str, Any], key: str, prefix: str, source: Path) -> dict[str, Any]:
    """Return a section; its keys may repeat its name in front."""
    section = values.get(key) or {}
    if not isinstance(section, Mapping):
        raise ConfigurationError(f"{source}: {key} must hold a mapping, got {section!r}.")
    return {str(name).removeprefix(prefix): value for name, value in section.items()}


def write_accelerate(
    path: str | PathLike[str], layout: TrainingLayout, *, devices_per_node: int = 8
) -> tuple[str, ...]:
    """Write a layout as accelerate's configuration, for ``accelerate launch --config_file``.

    A layout of the framework ``"deepspeed"`` or ``"megatron"`` uses accelerate's plugin of that name; others DDP, or
    FSDP2 with its tensor and context parallelism.

    Returns:
        What the training script has to set itself; it also stands at the file's top.

    Raises:
        InvalidInputError: accelerate's file can't say it.
    """
    import yaml

    words = {precision: word for word, precision in _PRECISIONS.items()}
    if layout.precision not in words:
        raise InvalidInputError(
            f"Accelerate's file can't say precision={layout.precision!r}; it knows {', '.join(words)}."
        )
    if layout.expert_parallel > 1:
        raise InvalidInputError(f"Accelerate's file can't say expert_parallel={layout.expert_parallel}.")
    kind, section = {"deepspeed": _as_deepspeed, "megatron": _as_megatron}.get(layout.framework, _as_pytorch)(layout)
    nodes = nodes_for(layout.num_devices, devices_per_node)
    values = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": words[layout.precision],
        "num_machines": nodes,
        "num_processes": layout.num_devices,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
        **section,
    }
    notes = _left_to_the_script(layout, kind)
    header = [f"# Your script sets: {note}." for note in notes]
    if nodes > 1:
        header.append(
            "# On each machine: accelerate launch --machine_rank N --main_process_ip HOST --main_process_port 29500."
        )
    text = "\n".join([*header, yaml.safe_dump(values, sort_keys=False)])
    write_durably(Path(path), text.encode())
    return notes


def _as_pytorch(layout: TrainingLayout) -> tuple[str, dict[str, Any]]:
    if layout.pipeline_parallel > 1:
        raise InvalidInputError(
            f"Accelerate's file can't say pipeline_parallel={layout.pipeline_parallel} for plain PyTorch: plan with "
            "framework='megatron', or write a torchrun command."
        )
    if layout.sharding == "zero1":
        raise InvalidInputError(
            "Accelerate's file can't say sharding='zero1' for plain PyTorch: plan with framework='deepspeed', or allow "
            "other shardings."
        )
    if layout.recompute == "selective":
        raise InvalidInputError(
            "Accelerate's file can't say recompute='selective'; FSDP recomputes whole layers or none."
        )
    shared = layout.tensor_parallel * layout.context_parallel
    if layout.sharding == "none" and shared > 1 and layout.shard_ranks > 1:
        raise InvalidInputError(
            "Accelerate combines tensor and context parallelism only with FSDP: choose sharding 'zero2' or 'zero3'."
        )
    if layout.sharding == "none" and layout.tensor_parallel == 1:
        if layout.offload != "none":
            raise InvalidInputError("Accelerate offloads only what FSDP shards: choose sharding 'zero2' or 'zero3'.")
        return ("NO" if layout.num_devices == 1 else "MULTI_GPU"), {}
    if layout.offload == "optimizer":
        raise InvalidInputError("FSDP offloads parameters and optimizer together: choose offload 'all' or 'none'.")
    section: dict[str, Any] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": layout.sharding == "zero3",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_offload_params": layout.offload == "all",
        "fsdp_activation_checkpointing": layout.recompute == "full",
    }
    found: dict[str, Any] = {"fsdp_config": section}
    if shared > 1:
        found["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": 1,
            "parallelism_config_dp_shard_size": layout.data_parallel,
            "parallelism_config_tp_size": layout.tensor_parallel,
            "parallelism_config_cp_size": layout.context_parallel,
        }
    return "FSDP", found


def _as_deepspeed(layout: TrainingLayout) -> tuple[str, dict[str, Any]]:
    values = deepspeed_values(layout)  # refuses what DeepSpeed can't say
    zero = values["zero_optimization"]
    section: dict[str, Any] = {
        "zero_stage": zero["stage"],
        "offload_optimizer_device": zero.get("offload_optimizer", {}).get("device", "none"),
        "offload_param_device": zero.get("offload_param", {}).get("device", "none"),
        "gradient_accumulation_steps": layout.micro_batches,
        "zero3_init_flag": layout.sharding == "zero3",
    }
    return "DEEPSPEED", {"deepspeed_config": section}


def _as_megatron(layout: TrainingLayout) -> tuple[str, dict[str, Any]]:
    for name, allowed in (
        ("virtual_pipeline", (1,)),
        ("context_parallel", (1,)),
        ("sharding", ("none", "zero1")),
        ("offload", ("none",)),
        ("recompute", ("none", "selective")),
    ):
        if getattr(layout, name) not in allowed:
            raise InvalidInputError(
                f"Accelerate's Megatron-LM section can't say {name}={getattr(layout, name)!r}; it knows "
                f"{', '.join(map(repr, allowed))}."
            )
    prefix = "megatron_lm_"
    section = {
        f"{prefix}tp_degree": layout.tensor_parallel,
        f"{prefix}sequence_parallelism": layout.tensor_parallel > 1,
        f"{prefix}pp_degree": layout.pipeline_parallel,
        f"{prefix}num_micro_batches": layout.micro_batches,
        f"{prefix}recompute_activations": layout.recompute == "selective",
        f"{prefix}use_distributed_optimizer": layout.sharding == "zero1",
    }
    return "MEGATRON_LM", {"megatron_lm_config": section}


def _left_to_the_script(layout: TrainingLayout, kind: str) -> tuple[str, ...]:
    notes = [f"batch of {layout.micro_batch_size} per device", f"sequence length {layout.seq_len}"]
    if kind not in ("DEEPSPEED", "MEGATRON_LM") and layout.micro_batches > 1:
        notes.append(f"gradient accumulation over {layout.micro_batches} micro-batches")
    if kind not in ("FSDP", "MEGATRON_LM") and layout.recompute != "none":
        notes.append(f"{layout.recompute} recompute of activations (gradient_checkpointing)")
    return (*notes, f"optimizer {layout.optimizer}")
