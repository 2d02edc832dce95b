"""Nested state as a JSON tree beside flat tensors, and back.

A node is ``[kind, payload]``: ``["tensor", name]``, ``["numpy", name]``, ``["dict", [[key, node], …]]`` with text or
integer keys, ``["counter", …]`` likewise, ``["list", [node, …]]``, ``["tuple", …]``, ``["size", …]``,
``["value", JSON scalar]``, ``["float", hexadecimal text]``, ``["scalar", [numpy dtype, hexadecimal bytes]]``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch

from ..core.errors import InvalidInputError
from .tensor_files import DTYPE_NAMES

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Node = list[Any]


def is_distributed_tensor(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is a DTensor, of which this process holds a part."""
    module = sys.modules.get("torch.distributed.tensor")  # no such tensor can be where it was never imported
    return module is not None and isinstance(tensor, module.DTensor)


class _Flattener:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def _tensor(self, tensor: torch.Tensor, path: str) -> Node:
        wraps_others = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        if (
            (wraps_others and not is_distributed_tensor(tensor))
            or tensor.layout != torch.strided
            or tensor.is_meta
            or tensor.is_quantized
            or tensor.dtype not in DTYPE_NAMES
        ):
            raise InvalidInputError(
                f"state[{path!r}] is a tensor that a checkpoint can't hold ({type(tensor).__name__}, {tensor.layout}, "
                f"{tensor.dtype}, on {tensor.device}); make it plain, dense and real, or leave it out."
            )
        tensor = tensor.detach()
        local: torch.Tensor
        if is_distributed_tensor(tensor):
            local = tensor.to_local()
            address = local.untyped_storage().data_ptr() and local.data_ptr()
        else:
            local = tensor = tensor.resolve_conj().resolve_neg()
            address = tensor.data_ptr() if tensor.numel() else 0
        # Tied weights are stored once: the same memory under the same shape is the same tensor.
        place = (tensor.device, address, tensor.dtype, tuple(tensor.shape), local.stride())
        if address and place in self._names:
            return ["tensor", self._names[place]]
        # {"a.b": …} and {"a": {"b": …}} have one path, and safetensors keeps a name for itself.
        while path in self.tensors or path == "__metadata__":
            path += "'"
        self._names[place] = path
        self.tensors[path] = tensor
        return ["tensor", path]

    def _array(self, array: np.ndarray[Any, Any], path: str) -> Node:
        plain = type(array) is np.ndarray and array.flags.c_contiguous and array.flags.writeable
        try:
            tensor = torch.from_numpy(array if plain else np.array(array, order="C"))
        except (TypeError, ValueError):
            raise InvalidInputError(
                f"state[{path!r}] is a numpy array of {array.dtype}; a checkpoint holds arrays of numbers and booleans "
                "in this machine's byte order."
            ) from None
        return ["numpy", self._tensor(tensor, path)[1]]

    def _items(self, mapping: Mapping[Any, Any], path: str) -> list[list[Any]]:
        items = []
        for key, inner in mapping.items():
            if type(key) not in (str, int):
                where = f"state[{path!r}]" if path else "state"
                raise InvalidInputError(f"{where}: keys must be text or integers, got {key!r}.")
            items.append([key, self.node(inner, f"{path}.{key}" if path else str(key))])
        return items

    def node(self, value: Any, path: str) -> Node:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, Counter):  # MultiStepLR keeps its milestones in one
            return ["counter", self._items(value, path)]
        if isinstance(value, Mapping):
            return ["dict", self._items(value, path)]
        for kind, sequence in (("list", list), ("tuple", tuple), ("size", torch.Size)):
            if type(value) is sequence:
                return [kind, [self.node(inner, f"{path}.{index}") for index, inner in enumerate(value)]]
        if type(value) is float:
            return ["float", value.hex()]  # exact, and covers NaN and infinity, which JSON lacks
        if isinstance(value, np.number | np.bool_):
            return ["scalar", [value.dtype.str, value.tobytes().hex()]]
        if value is None or type(value) in (bool, int, str):
            return ["value", value]
        raise InvalidInputError(
            f"state[{path!r}] is a {type(value).__name__}; a checkpoint holds tensors, numpy arrays, mappings, lists, "
            "tuples, numbers, text and None. Save the object's state_dict(), or a plain copy of it, instead."
        )


def flatten(state: Mapping[str, Any]) -> tuple[Node, dict[str, torch.Tensor]]:
    """Return the tree and the tensors it names.

    Mappings other than Counters come back as dicts, and parameters as tensors without gradients.

    Raises:
        InvalidInputError: a value that is neither a tensor nor plain data; its path is named.
    """
    if not isinstance(state, Mapping):
        raise InvalidInputError(f"state must be a mapping of parts, such as model and optimizer; got {type(state)}.")
    flattener = _Flattener()
    return flattener.node(state, ""), flattener.tensors


def tensor_names(node: Node) -> Iterator[str]:
    """Yield the names of all tensors in a tree."""
    kind, payload = node
    if kind in ("tensor", "numpy"):
        yield payload
    elif kind in ("dict", "counter"):
        for _, inner in payload:
            yield from tensor_names(inner)
    elif kind in ("list", "tuple"):
        for inner in payload:
            yield from tensor_names(inner)


def unflatten(node: Node, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state of a tree."""
    kind, payload = node
    if kind == "tensor":
        return tensors[payload]
    if kind == "numpy":
        return tensors[payload].numpy()
    if kind in ("dict", "counter"):
        items = {key: unflatten(inner, tensors) for key, inner in payload}
        return Counter(items) if kind == "counter" else items
    if kind in ("list", "tuple", "size"):
        inners = [unflatten(inner, tensors) for inner in payload]
        return {"list": list, "tuple": tuple, "size": torch.Size}[kind](inners)
    if kind == "float":
        return float.fromhex(payload)
    if kind == "scalar":
        dtype, content = payload
        return np.frombuffer(bytes.fromhex(content), np.dtype(dtype))[0]
    if kind == "value" and not isinstance(payload, list | dict):
        return payload
    raise InvalidInputError(f"The checkpoint holds a node of an unknown kind, {kind!r}, or with an unfit value.")
