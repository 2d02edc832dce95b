"""Nested state as a JSON tree beside flat tensors, and back.

A node is ``[kind, payload]``: ``["tensor", name]``, ``["dict", [[key, node], …]]`` with text or integer keys,
``["list", [node, …]]``, ``["tuple", …]``, ``["value", JSON scalar]``, ``["float", hexadecimal text]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..core.errors import InvalidInputError

Node = list[Any]

_NOT_IN_FILES = (torch.complex32, torch.complex128)  # safetensors has no such type


class _Flattener:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def _tensor(self, tensor: torch.Tensor, path: str) -> Node:
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.dtype in _NOT_IN_FILES:
            raise InvalidInputError(
                f"state[{path!r}] is a tensor that a checkpoint can't hold ({tensor.layout}, {tensor.dtype}, on "
                f"{tensor.device}); make it dense and real, or leave it out."
            )
        tensor = tensor.detach().resolve_conj().resolve_neg()
        # Tied weights are stored once: the same memory under the same shape is the same tensor.
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in self._names:
            return ["tensor", self._names[place]]
        # {"a.b": …} and {"a": {"b": …}} have one path, and safetensors keeps a name for itself.
        while path in self.tensors or path == "__metadata__":
            path += "'"
        self._names[place] = path
        self.tensors[path] = tensor
        return ["tensor", path]

    def _array(self, array: np.ndarray[Any, Any], path: str) -> Node:
        try:
            tensor = torch.from_numpy(np.array(array, order="C"))
        except (TypeError, ValueError):
            raise InvalidInputError(
                f"state[{path!r}] is a numpy array of {array.dtype}; a checkpoint holds arrays of numbers and booleans "
                "in this machine's byte order."
            ) from None
        return ["numpy", self._tensor(tensor, path)[1]]

    def node(self, value: Any, path: str) -> Node:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, Mapping):
            items = []
            for key, inner in value.items():
                if not isinstance(key, str | int) or isinstance(key, bool):
                    raise InvalidInputError(f"state{path}: keys must be text or integers, got {key!r}.")
                items.append([key, self.node(inner, f"{path}.{key}" if path else str(key))])
            return ["dict", items]
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, [self.node(inner, f"{path}.{index}") for index, inner in enumerate(value)]]
        if isinstance(value, float):
            return ["float", value.hex()]  # exact, and covers NaN and infinity, which JSON lacks
        if isinstance(value, np.float32 | np.float16):
            return ["float", float(value).hex()]
        if isinstance(value, np.integer | np.bool_):
            return ["value", value.item()]
        if value is None or isinstance(value, bool | int | str):
            return ["value", value]
        raise InvalidInputError(
            f"state[{path!r}] is a {type(value).__name__}; a checkpoint holds tensors, numpy arrays, mappings, lists, "
            "tuples, numbers, text and None. Save the object's state_dict() instead."
        )


def flatten(state: Mapping[str, Any]) -> tuple[Node, dict[str, torch.Tensor]]:
    """Return the tree and the tensors it names.

    Raises:
        InvalidInputError: a value that is neither a tensor nor plain data.
    """
    flattener = _Flattener()
    return flattener.node(state, ""), flattener.tensors


def unflatten(node: Node, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state of a tree."""
    kind, payload = node
    if kind == "tensor":
        return tensors[payload]
    if kind == "numpy":
        return tensors[payload].numpy()
    if kind == "dict":
        return {key: unflatten(inner, tensors) for key, inner in payload}
    if kind == "list":
        return [unflatten(inner, tensors) for inner in payload]
    if kind == "tuple":
        return tuple(unflatten(inner, tensors) for inner in payload)
    if kind == "float":
        return float.fromhex(payload)
    if kind == "value":
        return payload
    raise InvalidInputError(f"The checkpoint holds a node of unknown kind {kind!r}; it is newer than this fastbudget.")
