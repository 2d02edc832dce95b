"""Exports after training: of the run just made, of an old run, of a factory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..budget import CHECKPOINT_DIR
from ..checkpoint import CheckpointStore
from ..core.errors import ConfigurationError, InvalidInputError
from ..inference import Artifact, export
from ..training.batches import inputs_of
from .configuration import RunConfiguration
from .factories import call_factory, import_factory
from .run_record import read_run_record
from .workload import Workload, build_workload

_CHECKED_BATCHES = 4
_LARGEST_CHECKED_BATCH = 64


def load_best(workload: Workload, run_dir: Path) -> None:
    """Put a run's best checkpoint into the workload's model."""
    configuration = workload.configuration
    store = CheckpointStore(
        run_dir / CHECKPOINT_DIR, metric=configuration.ranking_metric, mode=configuration.ranking_mode
    )
    try:
        workload.model.load_state_dict(store.load(store.best()).state["model"])
    except RuntimeError as error:
        raise InvalidInputError(f"The checkpoint in {run_dir} doesn't fit the model: {error}") from error


def export_workload(workload: Workload, directory: Path) -> Artifact:
    """Export the workload's model as it is, verified on batches of the split that judges it."""
    split = workload.validation if workload.test is None else workload.test
    inputs: list[tuple[torch.Tensor, ...]] = []
    for batch in split:
        given = inputs_of(batch)
        given = tuple(given) if isinstance(given, list | tuple) else (given,)
        inputs.append(tuple(tensor[:_LARGEST_CHECKED_BATCH] for tensor in given))
        if len(inputs) == _CHECKED_BATCHES:
            break
    target = workload.configuration.export.target if workload.configuration.export else "onnx"
    return export(workload.model, inputs[0], directory, target, check_inputs=inputs)


def export_run(run_dir: Path, out: Path) -> Artifact:
    """Export the best checkpoint of a finished or interrupted run.

    Raises:
        RunDirectoryError: no run there, or no usable checkpoint in it.
        ConfigurationError: its model or data can't be built any more.
    """
    record = read_run_record(run_dir)
    configuration = RunConfiguration.model_validate(record.configuration)
    workload = build_workload(configuration, Path(record.source).parent)
    load_best(workload, run_dir)
    return export_workload(workload, out)


def export_factory(model: str, inputs: str, out: Path, *, checkpoint: Path | None = None) -> Artifact:
    """Export what a factory builds.

    Args:
        model: ``package.module:factory`` of the model.
        inputs: ``package.module:factory`` of example inputs, a tensor or a tuple of tensors.
        out: Directory of the artifact.
        checkpoint: A fastbudget checkpoint whose model state is loaded first.
    """
    here = Path.cwd()
    module: Any = call_factory(import_factory(model, "model", here), model, "model")
    if not isinstance(module, torch.nn.Module):
        raise ConfigurationError(f"model: {model!r} must return a torch.nn.Module, got a {type(module).__name__}.")
    if checkpoint is not None:
        state = CheckpointStore(checkpoint.parent).load(checkpoint).state
        try:
            module.load_state_dict(state["model"])
        except (KeyError, RuntimeError) as error:
            raise InvalidInputError(f"{checkpoint} doesn't fit the model of {model!r}: {error}.") from error
    return export(module, call_factory(import_factory(inputs, "inputs", here), inputs, "inputs"), out)
