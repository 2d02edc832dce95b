"""The model as evaluations want it, and training as if there had been none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .generators import generators_restored
from .precision import MixedPrecision


@contextmanager
def evaluating(model: torch.nn.Module, precision: MixedPrecision) -> Iterator[None]:
    """Put the model into eval mode, without gradients, in the training's precision; undo it at the end."""
    modes = [(module, module.training) for module in model.modules()]
    # Iterating a DataLoader draws from torch's generator, so without this the evaluations, whose moments depend on
    # the clock, would decide the order of the training data.
    with generators_restored():
        model.eval()
        try:
            with torch.no_grad(), precision.autocast():
                yield
        finally:
            for module, training in modes:
                module.training = training
