"""The run directory: who may use it, and what becomes of a run that is in it already."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from ..budget import CHECKPOINT_DIR, read_ledger
from ..core.errors import RunDirectoryError
from .run_record import RUN_FILE

State = Literal["free", "resume", "replace"]


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes from using the directory meanwhile; the lock lies beside it, so it survives --overwrite.

    Raises:
        RunDirectoryError: another process uses it, or its parent can't be made.
    """
    path = run_dir.absolute().parent / f".{run_dir.absolute().name}.lock"
    _make(path.parent, run_dir)
    try:
        file = path.open("a+")
    except OSError as error:
        raise _cannot_make(run_dir, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise RunDirectoryError(
                f"{run_dir} is in use by process {file.read().strip() or 'unknown'}; wait for it, or choose another "
                "--run-dir."
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def inspect_run_dir(run_dir: Path, *, resume: bool, overwrite: bool) -> State:
    """Return what is to become of the directory. Touches nothing.

    A run that never came to a checkpoint or to spending is as good as none: its directory is free.

    Raises:
        RunDirectoryError: it holds a run and neither flag was given, or it holds something that is not a run.
    """
    if not run_dir.exists() or (run_dir.is_dir() and not any(run_dir.iterdir())):
        if resume:
            raise RunDirectoryError(f"There is no run to resume in {run_dir}.")
        return "free"
    if not (run_dir / RUN_FILE).is_file():
        raise RunDirectoryError(f"{run_dir} exists and is not a run; choose another --run-dir. Nothing was touched.")
    if resume:
        return "resume"
    if overwrite:
        return "replace"
    has_checkpoints = (run_dir / CHECKPOINT_DIR).exists() and any((run_dir / CHECKPOINT_DIR).iterdir())
    if has_checkpoints or read_ledger(run_dir).total_billed_s > 0:
        raise RunDirectoryError(
            f"{run_dir} holds a run already. Continue it with --resume, replace it with --overwrite, or choose another "
            "--run-dir."
        )
    return "replace"


def prepare_run_dir(run_dir: Path, state: State) -> None:
    """Make the directory as its state asks: new, empty, or as it was."""
    if state == "replace":
        shutil.rmtree(run_dir)
    _make(run_dir, run_dir)


@contextmanager
def scratch_beside(run_dir: Path) -> Iterator[Path]:
    """Give a temporary directory on the run directory's file system."""
    parent = run_dir.absolute().parent
    try:
        scratch = tempfile.mkdtemp(prefix=f".{run_dir.name}.", dir=parent)
    except OSError as error:
        raise _cannot_make(run_dir, error) from error
    try:
        yield Path(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make(directory: Path, run_dir: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_make(run_dir, error) from error


def _cannot_make(run_dir: Path, error: OSError) -> RunDirectoryError:
    return RunDirectoryError(f"{run_dir} can't be used: {error.strerror}; choose another --run-dir.")
