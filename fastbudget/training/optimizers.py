"""Optimizers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..core.errors import InvalidInputError, did_you_mean, one_of

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}


def build_optimizer(
    optimizer: str | torch.optim.Optimizer | OptimizerFactory, model: torch.nn.Module, **options: Any
) -> torch.optim.Optimizer:
    """Return an optimizer of a model's trainable parameters.

    Args:
        optimizer: A name, an optimizer (returned as it is), or a function of the parameters.
        model: Whose parameters with ``requires_grad`` are optimized.
        options: For a named optimizer: ``lr``, ``weight_decay``, ….

    Raises:
        InvalidInputError: nothing to train, an unknown name, or an option the optimizer refuses.
    """
    params = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not params:
        raise InvalidInputError("The model has no trainable parameter; unfreeze some (requires_grad_(True)).")
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    if not isinstance(optimizer, str):
        return optimizer(params)
    if optimizer not in OPTIMIZERS:
        raise InvalidInputError(
            f"Unknown optimizer {optimizer!r}.{did_you_mean(optimizer, OPTIMIZERS)} Known: {one_of(OPTIMIZERS)}."
        )
    try:
        return OPTIMIZERS[optimizer](params, **options)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"Optimizer {optimizer!r} refuses its options {options}: {error}.") from error
