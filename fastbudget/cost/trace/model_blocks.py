"""A model's blocks: the layers it repeats, which are recomputed, sharded or split one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from ...core.errors import InvalidInputError, did_you_mean


def find_blocks(model: nn.Module, names: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """Return the outermost repeated layers of a model by name, in its order.

    A block is a member of a ModuleList or Sequential that has submodules and parameters, and whose class occurs there
    at least twice. Where there is none: a module of a class that the model itself names as one (Hugging Face's
    ``_no_split_modules``).

    Args:
        model: Any module; one without such layers has no blocks.
        names: Names of submodules, or of classes, to take instead.

    Raises:
        InvalidInputError: a name that the model doesn't have.
    """
    if names is not None:
        return _named(model, names)
    blocks: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            repeated = Counter(type(child) for child in module)
            for key, child in module.named_children():
                composite = any(True for _ in child.children()) and any(True for _ in child.parameters())
                if composite and repeated[type(child)] > 1:
                    blocks[f"{name}.{key}" if name else key] = child
    if not blocks:
        classes = set(getattr(model, "_no_split_modules", None) or ())
        blocks = {name: module for name, module in model.named_modules() if type(module).__name__ in classes}
    return _outermost(blocks)


def is_within(name: str, block: str) -> bool:
    """Whether a module's name is a block's or that of a part of it."""
    return name == block or name.startswith(f"{block}.")


def _named(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    modules = {name: module for name, module in model.named_modules() if name}
    classes = {type(module).__name__ for module in modules.values()}
    for name in names:
        if name not in modules and name not in classes:
            raise InvalidInputError(
                f"The model has no module and no class of modules named {name!r}."
                f"{did_you_mean(name, {*modules, *classes})}"
            )
    wanted = set(names)
    return {name: module for name, module in modules.items() if wanted & {name, type(module).__name__}}


def _outermost(blocks: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {
        name: module
        for name, module in blocks.items()
        if not any(name != other and is_within(name, other) for other in blocks)
    }
