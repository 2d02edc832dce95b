"""From a state to files: written and synced aside, vouched for by the manifest, then renamed into place."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..core.clock import utc_text
from ..core.durable_files import sync_directory
from ..core.errors import RunDirectoryError
from .leftovers import delete, hidden_path
from .manifest import Manifest, ShardedTensor, finite, package_versions, write_manifest
from .restoring import problem_with
from .state_tree import Node, flatten, is_distributed_tensor
from .tensor_files import FileRecord, write_shards

if TYPE_CHECKING:
    from .sharded_state import Ranks


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint was skipped because it is incomplete or damaged."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A checked state that is about to be written to ``final``; ``local`` is what this process holds of its tensors."""

    final: Path
    step: int
    metrics: dict[str, float]
    tree: Node
    tensors: Mapping[str, torch.Tensor]
    local: Mapping[str, torch.Tensor]
    sharded: bool


def draft_of(final: Path, step: int, state: Mapping[str, Any], metrics: Mapping[str, float]) -> Draft:
    """Return the draft of a state; raises InvalidInputError when it holds what a checkpoint can't."""
    tree, tensors = flatten(state)
    local: Mapping[str, torch.Tensor] = tensors
    sharded = any(map(is_distributed_tensor, tensors.values()))
    if sharded:
        from .sharded_state import local_tensors

        local = local_tensors(tensors)
    return Draft(
        final=final, step=step, metrics=finite(metrics), tree=tree, tensors=tensors, local=local, sharded=sharded
    )


def check_new(final: Path) -> None:
    """Raise RunDirectoryError when there is a good checkpoint already."""
    if final.exists() and problem_with(final) is None:
        raise RunDirectoryError(f"{final} was saved before; a checkpoint is never overwritten.")


def write(draft: Draft, *, most_bytes: int) -> None:
    """Write this process's state; it is durable on return. On any error nothing is left but what was there before."""
    partial = hidden_path(draft.final, "partial")
    try:
        partial.mkdir()
        _publish(draft, partial, write_shards(partial, "tensors", draft.local, most_bytes), {})
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_from_all_ranks(draft: Draft, *, ranks: Ranks, most_bytes: int) -> None:
    """Write a state that is spread over all ranks. All return when it is durable, or raise when any of them failed."""
    from .sharded_state import agree, part_digests, save_sharded

    mine = hidden_path(draft.final, "partial")

    def prepare() -> tuple[str, dict[str, str]]:
        if ranks.rank == 0:
            check_new(draft.final)
            mine.mkdir()
        return mine.name, part_digests(draft.tree, draft.tensors, draft.local)

    try:
        partial = mine.with_name(agree(ranks, prepare))
        save_sharded(
            partial,
            draft.tensors,
            draft.local,
            ranks=ranks,
            most_bytes=most_bytes,
            publish=lambda files, sharded: _publish(draft, partial, files, sharded),
        )
    except BaseException:
        shutil.rmtree(mine, ignore_errors=True)  # only rank 0 has one, and here no rank writes any more
        raise


def _publish(draft: Draft, partial: Path, files: dict[str, FileRecord], sharded: dict[str, ShardedTensor]) -> None:
    """Write the manifest, which names all other files, and rename the directory into place."""
    final = draft.final
    manifest = Manifest(
        step=draft.step,
        saved_at=utc_text(time.time()),
        metrics=draft.metrics,
        state=draft.tree,
        files=files,
        sharded=sharded,
        versions=package_versions(),
    )
    write_manifest(partial, manifest)
    if final.exists():
        check_new(final)  # again: another process may have been faster
        problem = problem_with(final)
        warnings.warn(f"Replacing checkpoint {final}: {problem}.", DamagedCheckpointWarning, stacklevel=6)
        delete(final)
    partial.rename(final)
    sync_directory(final.parent)
