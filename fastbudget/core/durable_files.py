"""Files that are whole after a crash: written aside, fsynced, then renamed into place."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def sync_directory(directory: Path) -> None:
    """Make renames and new names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's content durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``: after a crash it holds the old or the new content, never part of one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync_directory(path.parent)


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document durably. Not-a-number is refused: it isn't JSON."""
    write_durably(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
