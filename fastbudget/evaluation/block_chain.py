"""The blocks of a model as a chain: their content hashes, and forward passes that enter the chain in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import xxhash

from ..core.errors import InvalidInputError, did_you_mean
from .activation_cache import Bytes, TensorLayout


class Structure:
    """The tensors in a module's output and how to put others in their places; tuples, lists and mappings may nest."""

    def __init__(self, output: Any) -> None:
        self._output = _without_tensors(output)
        self.layouts = [TensorLayout.of(tensor) for tensor in tensors_in(output)]

    def filled(self, tensors: Iterator[torch.Tensor]) -> Any:
        """Return an output of this structure that holds these tensors."""
        return _fill(self._output, tensors)


class _Place:
    """Stands for a tensor."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a nested value, in a fixed order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from tensors_in(entry)


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return type(value)(**{key: change(entry) for key, entry in value.items()})
    entries = [change(entry) for entry in value]
    return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)


def _without_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Place()
    return _rebuilt(value, _without_tensors) if isinstance(value, Mapping | list | tuple) else value


def _fill(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return next(tensors)
    return _rebuilt(value, lambda entry: _fill(entry, tensors)) if isinstance(value, Mapping | list | tuple) else value


def find_chain(model: torch.nn.Module, names: Sequence[str] | None) -> dict[str, torch.nn.Module]:
    """Return the blocks by name, in the order they run.

    Args:
        model: An ``nn.Sequential``, or any module if names are given.
        names: Names of submodules, each fed by the one before.
    """
    if names is None:
        if not isinstance(model, torch.nn.Sequential):
            raise InvalidInputError(
                f"A {type(model).__name__} is no nn.Sequential: name the blocks that run one after the other from the "
                "input on, such as blocks=['embed', 'layers.0', 'layers.1']."
            )
        return dict(model.named_children())
    known = dict(model.named_modules())
    for name in names:
        if name not in known or not name:
            raise InvalidInputError(f"The model has no block {name!r}.{did_you_mean(name, known)}")
    if len(set(names)) < len(names) or not names:
        raise InvalidInputError(f"blocks must name at least one block and each once, got {list(names)}.")
    return {name: known[name] for name in names}


def block_hash(block: torch.nn.Module) -> bytes:
    """Hash all that decides what a block computes: its modules' classes and settings, parameters and buffers."""
    hasher = xxhash.xxh3_128()
    for name, module in block.named_modules(remove_duplicate=False):
        hasher.update(f"{name}:{type(module).__module__}.{type(module).__qualname__}:{module.training}".encode())
        hasher.update(repr(_settings(module)).encode())
        for kind in (module._parameters, module._buffers):
            for key, tensor in kind.items():
                hasher.update(f"{name}.{key}".encode())
                if tensor is not None:
                    hasher.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
                    hasher.update(rows_as_bytes(tensor.reshape(1, -1)).data)
    return hasher.digest()


def _settings(module: torch.nn.Module) -> list[tuple[str, str]]:
    plain = (bool, int, float, str, tuple, list, type(None))
    return sorted(
        (key, repr(value)) for key, value in vars(module).items() if isinstance(value, plain) and key != "training"
    )


def rows_as_bytes(tensor: torch.Tensor) -> Bytes:
    """Return the content of a tensor [B, …] as uint8 [B, bytes of one row]."""
    return tensor.detach().to("cpu").contiguous().reshape(len(tensor), -1).view(torch.uint8).numpy()


def row_hashes(batch: Any) -> list[bytes]:
    """Return one hash per example of a batch: a tensor or array [B, …], or a mapping or tuple of them.

    Plain values in it, such as ``use_cache=False``, belong to every example.
    """
    parts = list(_leaves(batch))
    plain = repr([part for part in parts if isinstance(part, _PLAIN)]).encode()
    leaves = [_rows_of(part) for part in parts if not isinstance(part, _PLAIN)]
    if not leaves or len({len(rows) for rows in leaves}) != 1:
        raise InvalidInputError("The inputs of a batch must be tensors or arrays with the batch as first dimension.")
    if len(parts) == 1:
        return [xxhash.xxh3_128_digest(row) for row in leaves[0]]
    rows = zip(*leaves, strict=True)
    return [xxhash.xxh3_128_digest(b"".join([plain, *(part.tobytes() for part in row)])) for row in rows]


_PLAIN = (bool, int, float, str, type(None))


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        for key in sorted(batch):
            yield from _leaves(batch[key])
    elif isinstance(batch, list | tuple):
        for entry in batch:
            yield from _leaves(entry)
    else:
        yield batch


def _rows_of(leaf: Any) -> Bytes:
    if isinstance(leaf, torch.Tensor):
        if leaf.dim() == 0:
            raise InvalidInputError("The inputs of a batch must have the batch as first dimension, got a scalar.")
        return rows_as_bytes(leaf)
    array = np.ascontiguousarray(leaf)
    if array.ndim == 0 or array.dtype.hasobject:
        raise InvalidInputError(
            f"The inputs of a batch must be tensors or arrays of numbers, got {type(leaf).__name__}."
        )
    return array.reshape(len(array), -1).view(np.uint8)


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Call a model on a batch's inputs: a mapping goes in as keywords, a tuple as arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


@contextmanager
def captured(blocks: Sequence[torch.nn.Module]) -> Iterator[list[list[Any]]]:
    """Collect, call by call, the `Structure` of what each block returns, and at the last one what it returns.

    That is copied at once: the next module may change it in place.
    """
    outputs: list[list[Any]] = [[] for _ in range(len(blocks) + 1)]

    def keep(place: int) -> Callable[[torch.nn.Module, Any, Any], None]:
        def hook(module: torch.nn.Module, arguments: Any, output: Any) -> None:
            outputs[place].append(Structure(output))
            if place == len(blocks) - 1:
                outputs[-1].append([tensor.clone() for tensor in tensors_in(output)])

        return hook

    hooks = [block.register_forward_hook(keep(place)) for place, block in enumerate(blocks)]
    try:
        yield outputs
    finally:
        for handle in hooks:
            handle.remove()


@contextmanager
def replaced(blocks: Sequence[torch.nn.Module], outputs: Sequence[Any]) -> Iterator[None]:
    """Let blocks return these outputs instead of computing."""
    for block, output in zip(blocks, outputs, strict=True):
        block.forward = lambda *arguments, _output=output, **keywords: _output
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
