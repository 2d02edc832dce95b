"""A layout as a `torchrun` command. Its options: docs.pytorch.org/docs/stable/elastic/run.html."""

from __future__ import annotations

import json
import shlex
from os import PathLike
from pathlib import Path

from ...core.durable_files import write_durably
from ..transformer.training_layout import TrainingLayout

# What a training script needs to know, by the names of TrainingLayout.
_TOLD = (
    "seq_len",
    "global_batch_size",
    "micro_batch_size",
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_pipeline",
    "context_parallel",
    "expert_parallel",
    "sharding",
    "recompute",
    "precision",
    "optimizer",
    "offload",
)


def nodes_for(num_devices: int, devices_per_node: int) -> int:
    """Return the fewest nodes over which devices spread evenly, no more than ``devices_per_node`` on each."""
    nodes = -(-num_devices // devices_per_node)
    while num_devices % nodes:
        nodes += 1
    return nodes


def torchrun_command(layout: TrainingLayout, script: str = "train.py", *, devices_per_node: int = 8) -> str:
    """Return the shell command that starts ``script`` on every device of a layout.

    On several machines it is run on each, with ``HEAD_NODE`` set to the name of one. The layout itself is in the
    environment variable ``FASTBUDGET_LAYOUT``, as JSON, for the script to read: torchrun knows processes only.
    """
    nodes = nodes_for(layout.num_devices, devices_per_node)
    told = json.dumps({name: getattr(layout, name) for name in _TOLD})
    if nodes == 1:
        where = f"--standalone --nproc-per-node {layout.num_devices}"
    else:
        where = (
            f"--nnodes {nodes} --nproc-per-node {layout.num_devices // nodes} --rdzv-backend c10d "
            '--rdzv-endpoint "${HEAD_NODE:?}:29500"'
        )
    return f"FASTBUDGET_LAYOUT={shlex.quote(told)} torchrun {where} {shlex.quote(script)}"


def write_torchrun(
    path: str | PathLike[str], layout: TrainingLayout, script: str = "train.py", *, devices_per_node: int = 8
) -> None:
    """Write :func:`torchrun_command` as an executable shell file that passes its arguments on."""
    command = torchrun_command(layout, script, devices_per_node=devices_per_node)
    target = Path(path)
    write_durably(target, f'#!/bin/sh\nset -eu\n{command} "$@"\n'.encode())
    target.chmod(0o755)
