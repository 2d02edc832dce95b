"""Directories that are being written or deleted: their names say by whom, so that only what the dead left is pruned."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import shutil
import time
from pathlib import Path
from typing import Literal

_HIDDEN = re.compile(r"\.step_\d{12}\.([0-9a-f]{8})\.(\d+)-(\d+)-\d+\.(?:partial|doomed)")
_ANY_HIDDEN = re.compile(r"\.step_\d{12}\..*(?:partial|doomed)")
_FOREIGN_AGE_S = 86_400.0
_count = itertools.count()


def hidden_path(final: Path, kind: Literal["partial", "doomed"]) -> Path:
    """Return a new name beside ``final`` for what this process is writing or deleting."""
    pid = os.getpid()
    return final.with_name(f".{final.name}.{_place()}.{pid}-{_started(pid)}-{next(_count)}.{kind}")


def delete(path: Path) -> None:
    """Delete a checkpoint. It is hidden first: a half-deleted one must not look like a damaged one."""
    doomed = hidden_path(path, "doomed")
    path.rename(doomed)
    shutil.rmtree(doomed)


def is_abandoned(path: Path) -> bool:
    """Return whether ``path`` is a hidden directory whose writer is dead.

    A process is its number and its start time: numbers are used again. Writers on another machine or in another
    container can't be seen from here; what they left counts as abandoned a day after its last change.
    """
    match = _HIDDEN.fullmatch(path.name)
    if match and match[1] == _place():
        return _started(int(match[2])) != match[3]
    if not _ANY_HIDDEN.fullmatch(path.name):
        return False
    try:
        changed = max(entry.stat().st_mtime for entry in (path, *path.iterdir()))
    except OSError:
        return False  # somebody is at it
    return time.time() - changed > _FOREIGN_AGE_S


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _place() -> str:
    """Return what tells apart the places that number processes on their own: boots of machines, and containers."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return hashlib.sha256(f"{_boot()} {namespace}".encode()).hexdigest()[:8]


def _started(pid: int) -> str | None:
    """Return a process's start in ticks since boot; None when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name may hold anything
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
