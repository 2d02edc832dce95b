"""Activation recompute by layer: chosen blocks of a model run again in the backward pass."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...core.errors import InvalidInputError
from .model_blocks import find_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager


@contextmanager
def recomputed_layers(model: nn.Module, names: Sequence[str] | None = None) -> Iterator[tuple[str, ...]]:
    """Run blocks under ``torch.utils.checkpoint`` while inside; yields their names.

    Random numbers are drawn again as they were, so dropout is the same. Running statistics of batch norms are updated
    once, as without recompute. ``config.use_cache`` is off meanwhile.

    Args:
        model: What it computes stays the same; parts in eval mode are not recomputed.
        names: Of submodules or of their classes; None: every repeated block.

    Raises:
        InvalidInputError: the model has no repeated blocks, or no submodule of a name.
    """
    blocks = find_blocks(model, names)
    if names is None and not blocks:
        raise InvalidInputError(
            "recompute='full' requires a model with repeated blocks in an nn.ModuleList or nn.Sequential, "
            f"and {type(model).__name__} has none. Use recompute='none', name the modules to recompute, or call "
            "torch.utils.checkpoint in its forward."
        )
    # A key-value cache would be filled a second time by the recomputed layer.
    caching = [config for config in _configs(model) if blocks and getattr(config, "use_cache", None)]
    for config in caching:
        config.use_cache = False
    for block in blocks.values():
        # An instance attribute hides the class's method; deleting it brings the method back.
        object.__setattr__(block, "forward", partial(_recomputed_forward, block, block.forward))
    try:
        yield tuple(blocks)
    finally:
        for block in blocks.values():
            object.__delattr__(block, "forward")
        for config in caching:
            config.use_cache = True


def _configs(model: nn.Module) -> list[Any]:
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    return list(configs.values())


def _recomputed_forward(block: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    statistics = running_statistics(block)
    if not statistics:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _unchanged(statistics)

    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def running_statistics(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that a forward pass of a model's batch norms updates."""
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._NormBase) and part.training]
    return [buffer for norm in norms for buffer in norm.buffers(recurse=False)]


@contextmanager
def _unchanged(buffers: Sequence[torch.Tensor]) -> Iterator[None]:
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.data.copy_(value)  # data: autograd saved the buffer, and must not take this for a change
