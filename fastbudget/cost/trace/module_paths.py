"""Which module an operation belongs to, in the forward pass and in the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as module_hooks

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn


class ModulePaths:
    """Follows the forward calls of a model's modules while entered.

    A backward node carries the sequence number that was next when its forward operation ran; that is how an
    operation of the backward pass finds its module.
    """

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._names: list[str] = [""]
        self._stack: list[int] = []
        self._module_of_sequence: dict[int, int] = {}
        self._handles: list[Any] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Qualified names; the model itself is the empty name at index 0."""
        return tuple(self._names)

    def register(self, model: nn.Module) -> None:
        """Learn the names of the model's modules."""
        for name, module in model.named_modules():
            if name:
                self._index[id(module)] = len(self._names)
                self._names.append(name)
            else:
                self._index[id(module)] = 0

    def owners(self, model: nn.Module) -> dict[torch.Tensor, int]:
        """Return the index of the module that holds each parameter; of tied ones the first."""
        found: dict[torch.Tensor, int] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                found.setdefault(parameter, self._index.get(id(module), 0))
        return found

    def current(self, node: Any) -> int:
        """Return the index of the running module; ``node`` is the running backward node, or None."""
        if self._stack:
            index = self._stack[-1]
            # The first operation after a node was made is the node's own; later ones may make none.
            self._module_of_sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, index)
            return index
        if node is not None:
            return self._module_of_sequence.get(node._sequence_nr(), 0)
        return 0

    def __enter__(self) -> ModulePaths:
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._entered),
            module_hooks.register_module_forward_hook(self._left, always_call=True),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _entered(self, module: nn.Module, args: Any) -> None:
        self._stack.append(self._index.get(id(module), self._stack[-1] if self._stack else 0))

    def _left(self, module: nn.Module, args: Any, out: Any) -> None:
        if self._stack:
            self._stack.pop()
