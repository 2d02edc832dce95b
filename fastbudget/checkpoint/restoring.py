"""From files back to the state, checking every byte that is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..core.errors import InvalidInputError
from .manifest import Manifest, ShardedTensor, read_manifest
from .state_tree import unflatten
from .tensor_files import DTYPE_NAMES, DTYPES, DamageError, check_tensors, read_tensors, tensor_shapes

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from .sharded_state import Ranks


def problem_with(directory: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None when every byte of it is as it was saved."""
    try:
        for name, record in read_manifest(directory).files.items():
            check_tensors(directory / name, record)
    except DamageError as damage:
        return str(damage)
    return None


def read_state(directory: Path, targets: Mapping[str, DTensor], ranks: Ranks | None) -> tuple[Manifest, dict[str, Any]]:
    """Return a checkpoint's manifest and state; tensors named in ``targets`` are these, filled in place.

    Raises:
        DamageError: it can't be trusted. With ``ranks``, on all of them, when any of them met it.
    """
    manifest = problem = None
    tensors: dict[str, torch.Tensor] = {}
    try:
        manifest = read_manifest(directory)
        tensors = _plain_tensors(directory, manifest, targets)
    except DamageError as damage:
        problem = damage
    if ranks is None:
        if problem is not None:
            raise problem
    else:
        problems = [text for text in ranks.exchange(str(problem) if problem else None) if text]
        if problems:
            raise DamageError(problems[0])
    assert manifest is not None
    if ranks is not None:
        from .sharded_state import load_into

        _check_targets(directory, manifest, targets)
        load_into(directory, manifest, targets, ranks)
        tensors.update(targets)
    try:
        return manifest, unflatten(manifest.state, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamageError(f"its state is malformed ({type(error).__name__}: {error})") from error


def _check_targets(directory: Path, manifest: Manifest, targets: Mapping[str, DTensor]) -> None:
    """Refuse targets that differ from what was saved: that is the caller's mistake, not damage."""
    saved = {name: (tensor.shape, tensor.dtype) for name, tensor in manifest.sharded.items()}
    for file, record in manifest.files.items():
        saved |= tensor_shapes(directory / file, record)
    for name, target in targets.items():
        wanted = (tuple(target.shape), DTYPE_NAMES[target.dtype])
        if name not in saved:
            raise InvalidInputError(f"Checkpoint {directory} has no tensor {name!r} to load into state[{name!r}].")
        if saved[name] != wanted:
            (shape, dtype), (wanted_shape, wanted_dtype) = saved[name], wanted
            raise InvalidInputError(
                f"Checkpoint {directory} has {name!r} of shape {shape} and {DTYPES[dtype]}; state[{name!r}] to load "
                f"into has {wanted_shape} and {DTYPES[wanted_dtype]}. Load into the model it was saved from."
            )


def _plain_tensors(directory: Path, manifest: Manifest, targets: Mapping[str, DTensor]) -> dict[str, torch.Tensor]:
    """Read all tensors that are not targets, and put together those that were saved in parts."""
    tensors: dict[str, torch.Tensor] = {}
    places: dict[str, list[tuple[str, ShardedTensor, int]]] = {}
    skipped = set(targets) - set(manifest.sharded)
    for name, sharded in manifest.sharded.items():
        for index, chunk in enumerate(sharded.chunks):
            if name in targets:
                skipped.add(chunk.tensor)
            else:
                places.setdefault(chunk.tensor, []).append((name, sharded, index))
        if name not in targets:
            tensors[name] = torch.empty(sharded.shape, dtype=DTYPES[sharded.dtype])
    for file, record in manifest.files.items():
        names = None if record.tensors is None else set(record.tensors) - skipped
        for stored, tensor in read_tensors(directory / file, record, names):
            if stored not in places:
                tensors[stored] = tensor
            for name, sharded, index in places.get(stored, ()):
                chunk = sharded.chunks[index]
                if tuple(tensor.shape) != chunk.sizes or tensor.dtype != DTYPES[sharded.dtype]:
                    raise DamageError(f"tensor {stored!r} has another shape or type than the manifest says")
                ranges = zip(chunk.offsets, chunk.sizes, strict=True)
                tensors[name][tuple(slice(begin, begin + size) for begin, size in ranges)] = tensor
    return tensors
