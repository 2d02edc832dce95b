"""Activation recompute by layer: the repeated blocks of a model run again in the backward pass."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ...core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's layers: the members of outermost lists of two or more modules of one class."""
    blocks: list[nn.Module] = []
    pending: list[nn.Module] = [model]
    while pending:
        module = pending.pop()
        children = list(module.children())
        classes = [type(child) for child in children]
        is_list = isinstance(module, (nn.ModuleList, nn.Sequential))
        if is_list and len(children) >= 2 and len(set(classes)) == 1 and any(True for _ in children[0].children()):
            blocks.extend(children)
        else:
            pending.extend(children)
    return blocks


@contextmanager
def recomputed_layers(model: nn.Module) -> Iterator[int]:
    """Run every repeated block under ``torch.utils.checkpoint`` while inside; yields how many there are.

    Raises:
        InvalidInputError: the model has no repeated blocks.
    """
    blocks = repeated_blocks(model)
    if not blocks:
        raise InvalidInputError(
            "recompute='full' requires a model with repeated blocks in an nn.ModuleList or nn.Sequential, "
            f"and {type(model).__name__} has none. Use recompute='none', or call torch.utils.checkpoint in "
            "its forward."
        )
    caching = [config for config in _configs(model) if getattr(config, "use_cache", None)]
    for config in caching:
        # A key-value cache would be filled a second time by the recomputed layer.
        config.use_cache = False
    for block in blocks:
        # An instance attribute hides the class's method; deleting it brings the method back.
        object.__setattr__(block, "forward", partial(_recomputed_forward, block, block.forward))
    try:
        yield len(blocks)
    finally:
        for block in blocks:
            object.__delattr__(block, "forward")
        for config in caching:
            config.use_cache = True


def _configs(model: nn.Module) -> list[Any]:
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    return list(configs.values())


def _recomputed_forward(block: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not block.training:
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
