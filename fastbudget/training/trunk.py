"""The state before the learning rate fell: one trunk, from which several budgets can go on."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from ..budget import CHECKPOINT_DIR, BudgetGuard
from ..checkpoint import CheckpointStore
from ..checkpoint.leftovers import hidden_path
from ..core.durable_files import sync_directory, sync_file
from ..core.errors import RunDirectoryError
from .metrics_log import METRICS_FILE
from .progress import Progress

TRUNK_DIR = "trunk"
COOLED_DOWN_DIR = "cooled_down"


def is_new_trunk(guard: BudgetGuard, step: int) -> bool:
    """Whether the trunk at this step is yet to be saved; after a return to it, it is there."""
    return not (guard.run_dir / TRUNK_DIR / f"step_{step:012d}").exists()


def save_trunk(guard: BudgetGuard, step: int, state: Mapping[str, Any]) -> None:
    """Save a run's trunk, its state when the learning rate begins to fall, in the place of an earlier one."""
    # Whoever goes on from here plans the end anew.
    unplanned = {"progress": Progress(decay_starts=1.0).state_dict()}
    guard.checkpoint({**state, **unplanned}, step=step, store=_store(guard.run_dir / TRUNK_DIR))


def warn_of_trunk(run_dir: Path) -> None:
    """Warn that a run goes on from an annealed model towards another end, if it could go on from its trunk."""
    if (run_dir / TRUNK_DIR).is_dir():
        warnings.warn(
            f"The learning rate of {run_dir} had begun to fall towards another end, and rises again: an annealed model "
            "is trained on. resume='trunk' goes on from the state before the fall.",
            RuntimeWarning,
            stacklevel=5,
        )


def _store(path: Path) -> CheckpointStore:
    return CheckpointStore(path, keep_last=1, keep_best=0)


def return_to_trunk(run_dir: Path) -> None:
    """Make a run's trunk its newest checkpoint.

    What came after it, an annealed model, is kept in ``cooled_down/step_N``, with the history until then. A call that
    was cut short is completed by the next.

    Raises:
        RunDirectoryError: the run has no trunk, or its trunk is damaged.
    """
    trunk = _store(run_dir / TRUNK_DIR).latest() if (run_dir / TRUNK_DIR).is_dir() else None
    if trunk is None:
        raise RunDirectoryError(
            f"{run_dir} has no trunk to go on from: it is saved when the learning rate begins to fall, with "
            "LearningRateSchedule(shape='wsd'). Resume with resume=True, or start anew."
        )
    checkpoints = run_dir / CHECKPOINT_DIR
    store = CheckpointStore(checkpoints)
    if store.verify(checkpoints / trunk.name) is not None:
        incomplete = hidden_path(checkpoints / trunk.name, "partial")
        shutil.copytree(trunk, incomplete)
        for file in incomplete.iterdir():
            sync_file(file)
        shutil.rmtree(checkpoints / trunk.name, ignore_errors=True)
        incomplete.rename(checkpoints / trunk.name)
        sync_directory(checkpoints)
    later = [path for path in store.paths() if path.name > trunk.name]
    if not later:
        return
    newest = later[-1].name
    kept = run_dir / COOLED_DOWN_DIR / newest
    for number in count(2):  # the newest is moved last: where it is there already, an earlier cool-down lies
        if not (kept / newest).exists():
            break
        kept = kept.with_name(f"{newest}_{number}")
    kept.mkdir(parents=True, exist_ok=True)
    if (run_dir / METRICS_FILE).exists() and not (kept / METRICS_FILE).exists():
        shutil.copyfile(run_dir / METRICS_FILE, kept / METRICS_FILE)
    for path in later:
        path.replace(kept / path.name)
    sync_directory(kept)
    sync_directory(checkpoints)
