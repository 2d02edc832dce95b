"""What can be refused before a run starts, and before it costs anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..core.errors import InvalidInputError, one_of
from .batch_stream import is_stateful
from .batches import check_has_batches, length_of
from .early_stopping import EarlyStopping
from .generators import generators_restored


def check_arguments(
    counts: dict[str, int | None],
    choices: dict[str, tuple[str, tuple[str, ...]]],
    *,
    mtbf_s: float | None,
    mode: str,
    early_stopping: EarlyStopping | None,
) -> None:
    """Raise InvalidInputError for counts below 1, unknown choices, and values that contradict each other."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InvalidInputError(f"{name} must be at least 1, got {value}.")
    for name, (choice, known) in choices.items():
        if choice not in known:
            raise InvalidInputError(f"{name} must be one of {one_of(known)}, got {choice!r}.")
    if mtbf_s is not None and not mtbf_s > 0:
        raise InvalidInputError(f"mtbf_s must be above 0 seconds, got {mtbf_s}.")
    if early_stopping is not None and early_stopping.mode != mode:
        raise InvalidInputError(f"early_stopping has mode {early_stopping.mode!r} and the trainer {mode!r}.")


def check_devices(model: torch.nn.Module) -> torch.device:
    """Return the device that all parameters and buffers of a model are on.

    Raises:
        InvalidInputError: they are on several, or have no values yet.
    """
    found: dict[torch.device, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.setdefault(tensor.device, name)
    if torch.device("meta") in found:
        raise InvalidInputError(
            f"The model's {found[torch.device('meta')]!r} is on the meta device and has no values; materialize it "
            "(model.to_empty(device=...) and initialize, or load its weights) before training."
        )
    if len(found) > 1:
        places = ", ".join(f"{name!r} on {device}" for device, name in found.items())
        raise InvalidInputError(
            f"The model must be on one device, got {places}; move it with model.to(device) before its optimizer is "
            "made."
        )
    return next(iter(found), torch.device("cpu"))


def check_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Raise InvalidInputError for an optimizer none of whose parameters are the model's trainable ones."""
    own = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise InvalidInputError(
            "The optimizer holds no trainable parameter of the model: steps would change nothing. Make it from "
            "model.parameters(), after the model was replaced, wrapped or moved; or give its name or a function."
        )


def check_data(train_data: Iterable[Any], num_batches: int | None, grad_accumulation: int) -> None:
    """Raise InvalidInputError for data without a batch, or with less than one step takes.

    Data without a length that can be iterated again is asked for a batch.

    Args:
        train_data: Of one rank, or shared by all.
        num_batches: In an epoch, where the ranks know it.
        grad_accumulation: Batches that a step takes.
    """
    batches = num_batches or getattr(train_data, "batches_per_epoch", None) or length_of(train_data)
    if batches is None:
        if not is_stateful(train_data):
            with generators_restored():
                check_has_batches(train_data, "train_data")
        return
    if not batches:
        raise InvalidInputError(
            "train_data yields no batch: the data set is empty, or smaller than a batch with drop_last."
        )
    if batches < grad_accumulation:
        raise InvalidInputError(
            f"train_data is shorter than one global batch: a step takes grad_accumulation={grad_accumulation} batches "
            f"and an epoch has {batches}, so a step would see samples twice. Lower grad_accumulation or the batch size."
        )
    samples, batch_size = length_of(getattr(train_data, "dataset", ())), getattr(train_data, "batch_size", None)
    if samples and isinstance(batch_size, int) and samples < batch_size:
        raise InvalidInputError(
            f"train_data is shorter than one global batch: that is {batch_size} samples, and the data set has "
            f"{samples}. Take a smaller batch size, or more data."
        )
