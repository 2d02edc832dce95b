"""A directory of checkpoints: one directory per step, complete or absent, newest good one always found."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

from ..core.clock import utc_text
from ..core.durable_files import sync_directory, sync_file, write_durably
from ..core.errors import InvalidInputError, RunDirectoryError, SaveError
from .state_tree import flatten, unflatten

_FORMAT = "fastbudget-checkpoint"
_FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_TENSORS = "tensors.safetensors"
_NAME = re.compile(r"step_(\d{12})$")
_MOST_STEPS = 10**12
# Being written, or being deleted, by the process of that number.
_PARTIAL = re.compile(r"\.step_\d{12}\.(\d+)\.(partial|doomed)$")


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint was skipped because it is incomplete or damaged."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: where it was, its step, its metrics, its state."""

    path: Path
    step: int
    metrics: dict[str, float]
    state: dict[str, Any]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sealed(body: dict[str, Any]) -> bytes:
    """Return the manifest's bytes: its body and the body's hash, so that a damaged manifest is noticed too."""
    return json.dumps({"sha256": _body_hash(body), "body": body}).encode()


def _body_hash(body: Any) -> str:
    # json round-trips key order and floats exactly, so the text can be made again from what was read.
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the body of a checkpoint's manifest; raises ValueError or OSError when it can't be trusted."""
    document = json.loads((path / _MANIFEST).read_bytes())
    if not isinstance(document, dict) or not isinstance(document.get("body"), dict):
        raise ValueError("it is not a fastbudget checkpoint's")
    if document.get("sha256") != _body_hash(document["body"]):
        raise ValueError("it has changed since it was saved")
    body: dict[str, Any] = document["body"]
    return body


class CheckpointStore:
    """Saves and finds training states.

    ``save`` returns once the checkpoint is durable: tensors, then a manifest with sizes and hashes, each fsynced, in a
    hidden directory that is renamed into place last. A crash at any moment leaves the older checkpoints as they were.

    Args:
        directory: Made when missing.
        keep_last: Newest checkpoints to keep, at least 1.
        keep_best: Best checkpoints by ``metric`` to keep besides; 0 keeps none for that reason.
        metric: Key of the metrics given to ``save`` that ranks checkpoints.
        mode: ``"max"`` if a larger metric is better, ``"min"`` if a smaller.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_last: int = 2,
        keep_best: int = 1,
        metric: str | None = None,
        mode: Literal["max", "min"] = "max",
    ) -> None:
        if keep_last < 1:
            raise InvalidInputError(f"keep_last must be at least 1: a store never holds none. Got {keep_last}.")
        if keep_best < 0:
            raise InvalidInputError(f"keep_best must not be negative, got {keep_best}.")
        if mode not in ("max", "min"):
            raise InvalidInputError(f"mode must be 'max' or 'min', got {mode!r}.")
        self.directory = Path(directory)
        self.keep_last, self.keep_best, self.metric, self.mode = keep_last, keep_best, metric, mode
        self._saved: Path | None = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
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
            SaveError: the disk is full or not writable; what was saved before is intact.
            RunDirectoryError: this step was saved before.
            InvalidInputError: the state holds something else, or the step is not a number a store can hold.
        """
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < _MOST_STEPS:
            raise InvalidInputError(f"step must be an integer in [0, 10^12), got {step!r}.")
        final = self.directory / f"step_{step:012d}"
        problem = self.verify(final) if final.exists() else None
        if final.exists() and problem is None:
            raise RunDirectoryError(f"Step {step} was saved before, in {final}; a checkpoint is never overwritten.")
        tree, tensors = flatten(state)
        partial = self.directory / f".{final.name}.{os.getpid()}.partial"
        try:
            self._write(partial, step, tree, tensors, dict(metrics or {}))
            if problem is not None:
                warnings.warn(f"Replacing checkpoint {final}: {problem}.", DamagedCheckpointWarning, stacklevel=2)
                self._delete(final)
            partial.rename(final)
            sync_directory(self.directory)
        except Exception as error:
            with contextlib.suppress(OSError):
                shutil.rmtree(partial)
            if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
                kept = None
                with contextlib.suppress(OSError):
                    kept = self.latest()
                kept_text = f"The last good checkpoint is {kept}." if kept else "There is no good checkpoint before it."
                raise SaveError(
                    f"Step {step} could not be saved in {self.directory}: {error}. {kept_text} "
                    "Free space or make the directory writable, then resume."
                ) from error
            raise
        self._saved = final
        self.prune()
        return final

    def _write(
        self,
        partial: Path,
        step: int,
        tree: list[Any],
        tensors: Mapping[str, torch.Tensor],
        metrics: dict[str, float],
    ) -> None:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        file = partial / _TENSORS
        # save_file refuses views that share memory; a copy of each gives every tensor memory of its own.
        save_file({name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}, file)
        sync_file(file)
        manifest = {
            "format": _FORMAT,
            "version": _FORMAT_VERSION,
            "step": step,
            "saved_at": utc_text(file.stat().st_mtime),
            "torch": torch.__version__,
            "metrics": {name: float(value) for name, value in metrics.items() if math.isfinite(value)},
            "files": {_TENSORS: {"bytes": file.stat().st_size, "sha256": _sha256(file)}},
            "state": tree,
        }
        write_durably(partial / _MANIFEST, _sealed(manifest))

    def prune(self) -> None:
        """Delete what neither ``keep_last`` nor ``keep_best`` asks for, and leftovers of dead processes.

        The newest good checkpoint stays, however many damaged ones are newer.
        """
        paths = self.paths()
        kept = set(paths[-self.keep_last :])
        good = self._saved if self._saved in paths else self._first_good(paths[::-1])
        if good is not None:
            kept.add(good)
        if self.keep_best:
            kept.update(self._ranked(paths)[: self.keep_best])
        for path in paths:
            if path not in kept:
                self._delete(path)
        for path in self.directory.iterdir():
            match = _PARTIAL.fullmatch(path.name)
            if match and not Path(f"/proc/{match[1]}").exists():
                shutil.rmtree(path, ignore_errors=True)

    @staticmethod
    def _delete(path: Path) -> None:
        # Hidden first: a half-deleted checkpoint must not look like a damaged one.
        doomed = path.with_name(f".{path.name}.{os.getpid()}.doomed")
        path.rename(doomed)
        shutil.rmtree(doomed)

    # -- finding ---------------------------------------------------------------------------------------------------

    def paths(self) -> list[Path]:
        """Return the checkpoints' directories, oldest step first, unverified."""
        return sorted(path for path in self.directory.iterdir() if _NAME.fullmatch(path.name))

    def _metrics_of(self, path: Path) -> dict[str, float]:
        try:
            return dict(_read_manifest(path)["metrics"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # verify() will say what is wrong with it

    def _ranked(self, paths: list[Path]) -> list[Path]:
        """Return the paths that carry the metric as a number, best first; the newer of equals first."""
        if self.metric is None:
            return []
        sign = 1 if self.mode == "max" else -1
        scored = []
        for path in paths:
            value = self._metrics_of(path).get(self.metric)
            if value is not None and value == value:
                scored.append((sign * value, path.name, path))
        return [path for _, _, path in sorted(scored, reverse=True)]

    def _first_good(self, candidates: list[Path]) -> Path | None:
        for path in candidates:
            problem = self.verify(path)
            if problem is None:
                return path
            warnings.warn(f"Skipping checkpoint {path}: {problem}.", DamagedCheckpointWarning, stacklevel=3)
        return None

    def latest(self) -> Path | None:
        """Return the newest checkpoint that verifies; damaged ones are skipped with a warning."""
        return self._first_good(self.paths()[::-1])

    def best(self) -> Path | None:
        """Return the best checkpoint by ``metric`` that verifies; None when none carries the metric."""
        if self.metric is None:
            raise InvalidInputError("best() needs to know what is best: make the store with metric= and mode=.")
        return self._first_good(self._ranked(self.paths()))

    def describe(self, path: str | os.PathLike[str]) -> tuple[int, dict[str, float]]:
        """Return a checkpoint's step and metrics without loading its tensors."""
        manifest = _read_manifest(Path(path))
        return int(manifest["step"]), dict(manifest["metrics"])

    def verify(self, path: str | os.PathLike[str]) -> str | None:
        """Return what is wrong with a checkpoint, or None when it is whole."""
        path = Path(path)
        try:
            manifest = _read_manifest(path)
        except FileNotFoundError:
            return "its manifest is missing: the save didn't finish"
        except (OSError, ValueError) as error:
            return f"its manifest can't be read ({error})"
        if manifest.get("format") != _FORMAT:
            return "its manifest is not a fastbudget checkpoint's"
        if manifest.get("version") != _FORMAT_VERSION:
            return f"its format version is {manifest.get('version')!r}; this fastbudget reads {_FORMAT_VERSION}"
        files = manifest.get("files")
        if not isinstance(files, dict) or set(files) != {_TENSORS}:
            return "its manifest lists other files than a checkpoint has"
        for name, expected in files.items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != expected.get("bytes"):
                return f"{name} has {file.stat().st_size} bytes instead of {expected.get('bytes')}"
            if _sha256(file) != expected.get("sha256"):
                return f"{name} has changed since it was saved (its hash differs)"
        return None

    def load(self, path: str | os.PathLike[str] | None = None) -> Checkpoint:
        """Load a checkpoint, by default the newest good one, after verifying it.

        Raises:
            RunDirectoryError: there is none, or the one named is damaged; nothing is loaded in part.
        """
        chosen = self.latest() if path is None else Path(path)
        if chosen is None:
            raise RunDirectoryError(f"There is no usable checkpoint in {self.directory}.")
        problem = self.verify(chosen) if path is not None else None
        if problem is not None:
            raise RunDirectoryError(f"Checkpoint {chosen} can't be loaded: {problem}.")
        manifest = _read_manifest(chosen)
        state = unflatten(manifest["state"], load_file(chosen / _TENSORS))
        return Checkpoint(chosen, int(manifest["step"]), dict(manifest["metrics"]), state)
