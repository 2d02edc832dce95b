"""A directory of checkpoints: one directory per step, complete or absent, newest good one always found."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.durable_files import sync_directory
from ..core.errors import CheckpointError, InvalidInputError, SaveError
from ..core.young_daly import checkpoint_interval
from .background_save import BackgroundWriter, SaveHandle, Staging
from .leftovers import delete, is_abandoned
from .manifest import read_manifest
from .restoring import problem_with, read_state
from .state_tree import flatten, is_distributed_tensor
from .tensor_files import DamageError
from .writing import DamagedCheckpointWarning, Draft, check_new, draft_of, write, write_from_all_ranks

if TYPE_CHECKING:
    from .sharded_state import Ranks

_NAME = re.compile(r"step_(\d{12})")
_MOST_STEPS = 10**12


def _candidates(listing: Callable[[], list[Path]]) -> Iterator[Path]:
    """Yield the paths in order. They are listed anew for each, because a save may prune and publish meanwhile."""
    tried: set[Path] = set()
    while path := next((path for path in listing() if path not in tried), None):
        tried.add(path)
        yield path


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: where it was, its step, its metrics, its state."""

    path: Path
    step: int
    metrics: dict[str, float]
    state: dict[str, Any]


class CheckpointStore:
    """Saves and finds training states.

    A save is durable when it returns: tensors, then a manifest with sizes and hashes, each fsynced, in a hidden
    directory that is renamed into place last. A crash at any moment leaves the older checkpoints as they were.
    Nothing is pickled, and loading never executes code.

    A state with DTensors (FSDP2) is saved and loaded by all ranks together: each calls the same methods in the same
    order. Other states are the business of the process that saves them. One thread at a time may use a store.

    Args:
        directory: Made when missing.
        keep_last: Newest checkpoints to keep, at least 1.
        keep_best: Best checkpoints by ``metric`` to keep besides; 0 keeps none for that reason.
        metric: Key of the metrics given to ``save`` that ranks checkpoints.
        mode: ``"max"`` if a larger metric is better, ``"min"`` if a smaller.
        max_shard_bytes: Size of a file, unless one tensor alone is larger.

    Raises:
        SaveError: the directory can't be made.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_last: int = 2,
        keep_best: int = 1,
        metric: str | None = None,
        mode: Literal["max", "min"] = "max",
        max_shard_bytes: int = 4 * 2**30,
    ) -> None:
        if keep_last < 1:
            raise InvalidInputError(f"keep_last must be at least 1: a store never holds none. Got {keep_last}.")
        if keep_best < 0:
            raise InvalidInputError(f"keep_best must not be negative, got {keep_best}.")
        if mode not in ("max", "min"):
            raise InvalidInputError(f"mode must be 'max' or 'min', got {mode!r}.")
        if max_shard_bytes < 1:
            raise InvalidInputError(f"max_shard_bytes must be at least 1, got {max_shard_bytes}.")
        self.directory = Path(directory)
        self.keep_last, self.keep_best, self.metric, self.mode = keep_last, keep_best, metric, mode
        self.max_shard_bytes = max_shard_bytes
        self._saved: Path | None = None
        self._writer: BackgroundWriter | None = None
        self._background: SaveHandle | None = None
        self._staging = Staging()
        self._ranks: Ranks | None = None
        self._stalls_s: deque[float] = deque(maxlen=5)
        missing = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for made in missing:
                sync_directory(made.parent)
        except OSError as error:
            raise SaveError(f"The checkpoint directory {self.directory} can't be made: {error.strerror}.") from error

    # -- writing ---------------------------------------------------------------------------------------------------

    def save(self, step: int, state: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> Path:
        """Save a state durably, then prune.

        Args:
            step: Not saved before in this store; a damaged checkpoint of the same step is replaced with a warning.
            state: Nested mapping of tensors, numpy arrays and plain data.
            metrics: Numbers measured on this state; those that are NaN or infinite are left out.

        Raises:
            SaveError: the disk is full or not writable; what was saved before is intact. Also when a save in the
                background has failed, and nobody was told yet.
            RunDirectoryError: this step was saved before.
            InvalidInputError: the state holds something else, or the step is not a number a store can hold.
        """
        with self._measured_stall():
            self.wait()
            return self._commit(self._draft(step, state, metrics))

    def save_async(self, step: int, state: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> SaveHandle:
        """Copy a state and save the copy in the background; see `save`.

        Returns after the copy: what is done to the state afterwards doesn't reach the checkpoint. An earlier save
        that is still under way is waited for first. The copy's memory is kept for the next one.

        Returns:
            A handle whose ``wait()`` returns the path once the checkpoint is durable, and raises what `save` raises.
            An error that nobody waited for is logged, and raised by the store's next save, prune or wait.
        """
        with self._measured_stall():
            self.wait()
            draft = self._draft(step, state, metrics)
            staged = replace(draft, local=self._staging.copy(draft.local))
            if self._writer is None or not self._writer.is_here:
                self._writer = BackgroundWriter()
            self._background = self._writer.start(lambda: self._commit(staged))
            return self._background

    def interval_s(self, mtbf_s: float) -> float | None:
        """Return the seconds of work between two saves that waste least, by the stalls measured so far.

        Args:
            mtbf_s: Expected seconds between interruptions, > 0; see `fb.checkpoint_interval`.

        Returns:
            None before the first save.
        """
        return checkpoint_interval(statistics.median(self._stalls_s), mtbf_s) if self._stalls_s else None

    @contextlib.contextmanager
    def _measured_stall(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._stalls_s.append(time.perf_counter() - begin)

    def wait(self) -> None:
        """Wait for the save in the background, if there is one, and raise its error, if nobody was told of it yet."""
        background = self._background
        if background is None or self._writer is None or not self._writer.is_here:
            return
        try:
            background.settle()
        finally:
            if background.done:  # and not interrupted
                self._background = None

    def _draft(self, step: int, state: Mapping[str, Any], metrics: Mapping[str, float] | None) -> Draft:
        if not isinstance(step, Integral) or isinstance(step, bool) or not 0 <= step < _MOST_STEPS:
            raise InvalidInputError(f"step must be an integer in [0, 10^12), got {step!r}.")
        draft = draft_of(self.directory / f"step_{step:012d}", int(step), state, metrics or {})
        if draft.sharded:
            self._all_ranks()  # made here, while all ranks are here
        else:
            check_new(draft.final)
        return draft

    def _commit(self, draft: Draft) -> Path:
        try:
            if draft.sharded:
                write_from_all_ranks(draft, ranks=self._all_ranks(), most_bytes=self.max_shard_bytes)
            else:
                write(draft, most_bytes=self.max_shard_bytes)
        except OSError as error:
            raise self._save_error(draft.step, error) from error
        self._saved = draft.final
        if self._ranks is None or self._ranks.rank == 0:
            self._prune()
        return draft.final

    def _save_error(self, step: int, error: OSError) -> SaveError:
        kept = None
        with contextlib.suppress(OSError):
            kept = self.latest()
        kept_text = f"The last good checkpoint is {kept}." if kept else "There is no good checkpoint before it."
        return SaveError(
            f"Step {step} could not be saved in {self.directory}: {error}. {kept_text} "
            "Free space or make the directory writable, then resume."
        )

    def _all_ranks(self) -> Ranks:
        if self._ranks is None:
            from .sharded_state import Ranks

            self._ranks = Ranks()
        return self._ranks

    # -- keeping ---------------------------------------------------------------------------------------------------

    def prune(self) -> None:
        """Delete what neither ``keep_last`` nor ``keep_best`` asks for, and leftovers of dead processes.

        The newest good checkpoint stays, however many damaged ones are newer.
        """
        self.wait()
        self._prune()

    def _prune(self) -> None:
        paths = self.paths()
        kept = set(paths[-self.keep_last :])
        good = self._saved if self._saved in paths else self._first_good(lambda: paths[::-1])
        if good is not None:
            kept.add(good)
        if self.keep_best:
            kept.update(self._ranked(paths)[: self.keep_best])
        for path in paths:
            if path not in kept:
                self._drop(path)
        for path in self.directory.iterdir():
            if is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)

    @staticmethod
    def _drop(path: Path) -> None:
        try:
            delete(path)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:  # no reason to fail a save that is durable
            warnings.warn(f"The old checkpoint {path} can't be deleted: {error}.", RuntimeWarning, stacklevel=4)

    # -- finding ---------------------------------------------------------------------------------------------------

    def paths(self) -> list[Path]:
        """Return the checkpoints' directories, oldest step first, unverified."""
        try:
            return sorted(path for path in self.directory.iterdir() if _NAME.fullmatch(path.name))
        except FileNotFoundError:
            return []

    def _ranked(self, paths: list[Path]) -> list[Path]:
        """Return the paths that carry the metric as a number, best first; the newer of equals first."""
        sign = 1 if self.mode == "max" else -1
        scored = []
        for path in paths if self.metric is not None else ():
            with contextlib.suppress(DamageError):  # verify() will say what is wrong with it
                value = read_manifest(path).metrics.get(str(self.metric))
                if value is not None and value == value:
                    scored.append((sign * value, path.name, path))
        return [path for _, _, path in sorted(scored, reverse=True)]

    def _first_good(self, listing: Callable[[], list[Path]]) -> Path | None:
        for path in _candidates(listing):
            problem = self.verify(path)
            if problem is None:
                return path
            self._warn_of(path, problem)
        return None

    def _newest_first(self) -> list[Path]:
        return self.paths()[::-1]

    @staticmethod
    def _warn_of(path: Path, problem: object) -> None:
        if path.exists():  # else it was pruned while it was read
            warnings.warn(f"Skipping checkpoint {path}: {problem}.", DamagedCheckpointWarning, stacklevel=4)

    def latest(self) -> Path | None:
        """Return the newest checkpoint that verifies; damaged ones are skipped with a warning."""
        return self._first_good(self._newest_first)

    def best(self) -> Path | None:
        """Return the best checkpoint by ``metric`` that verifies; None when none carries the metric."""
        if self.metric is None:
            raise InvalidInputError("best() needs to know what is best: make the store with metric= and mode=.")
        return self._first_good(lambda: self._ranked(self.paths()))

    def describe(self, path: str | os.PathLike[str]) -> tuple[int, dict[str, float]]:
        """Return a checkpoint's step and metrics without loading its tensors; raises CheckpointError."""
        try:
            manifest = read_manifest(Path(path))
        except DamageError as damage:
            raise CheckpointError(f"Checkpoint {path} can't be read: {damage}.") from damage
        return manifest.step, dict(manifest.metrics)

    def verify(self, path: str | os.PathLike[str]) -> str | None:
        """Return what is wrong with a checkpoint, or None when every byte of it is as it was saved."""
        return problem_with(Path(path))

    # -- loading ---------------------------------------------------------------------------------------------------

    def load(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        into: Mapping[str, Any] | None = None,
        require: Iterable[str] = (),
    ) -> Checkpoint:
        """Load a checkpoint, by default the newest good one. Every byte that is used is checked while it is read.

        Args:
            path: One of `paths`, or a copy of one elsewhere.
            into: A state of the same structure, whose DTensors are filled in place, whatever number of ranks saved
                them; all ranks call. Without it, tensors that were sharded come back whole, on the CPU.
            require: Parts (keys of the state) that must be there, such as ``("model", "optimizer")``.

        Raises:
            CheckpointError: there is none, the one named is damaged, or it lacks a part; nothing is loaded in part.
        """
        given = flatten(into)[1] if into is not None else {}
        targets = {name: tensor for name, tensor in given.items() if is_distributed_tensor(tensor)}
        ranks = None
        if targets:
            self.wait()  # ranks talk about one thing at a time
            ranks = self._all_ranks()

        def listing() -> list[Path]:
            paths = self._newest_first() if path is None else [Path(path)]
            return paths if ranks is None else ranks.exchange(paths)[0]

        for candidate in _candidates(listing):
            try:
                manifest, state = read_state(candidate, targets, ranks)
            except DamageError as damage:
                if path is not None:
                    raise CheckpointError(f"Checkpoint {candidate} can't be loaded: {damage}.") from damage
                self._warn_of(candidate, damage)
                continue
            missing = [part for part in require if part not in state]
            if missing:
                raise CheckpointError(
                    f"Checkpoint {candidate} has no part {missing[0]!r}, only {', '.join(map(repr, state))}. Load "
                    "another, or leave the part out of require and start it anew."
                )
            return Checkpoint(candidate, manifest.step, dict(manifest.metrics), state)
        raise CheckpointError(f"There is no usable checkpoint in {self.directory}.")
