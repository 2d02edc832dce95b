"""Appending to a ledger: JSON lines, each on disk before the next, and a heartbeat overwritten in place."""

import json
import os
import time
from typing import Any

VERSION = 2
# One disk sector, so that it is written whole or not at all.
HEARTBEAT_BYTES = 512


def utc_now() -> str:
    """Return the time as ``2026-01-31T12:00:00.000Z``."""
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"


def make_line(event: str, fields: dict[str, Any], at: str | None = None) -> bytes:
    """Return one line of the ledger."""
    return json.dumps({"v": VERSION, "at": at or utc_now(), "event": event, **fields}).encode() + b"\n"


def append_line(descriptor: int, line: bytes) -> None:
    """Append a line durably. In one write, so that lines of two processes never mix."""
    written = os.write(descriptor, line)
    if written < len(line):  # the disk is nearly full: the rest either raises or fits
        os.write(descriptor, line[written:])
    os.fsync(descriptor)


def end_line(descriptor: int) -> None:
    """Start on a new line, if a crash cut the last one short."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")


def write_heartbeat(descriptor: int, session: int, seconds: dict[str, float], steps: int) -> None:
    """Replace the heartbeat: what the session has spent so far. Works on a full disk, once the file exists."""
    beat = {"session": session, "at": utc_now(), "steps": steps, "seconds": seconds}
    os.pwrite(descriptor, json.dumps(beat).encode().ljust(HEARTBEAT_BYTES - 1) + b"\n", 0)
    os.fdatasync(descriptor)
