"""What a run has spent, as JSON lines that survive the process: one file per run directory, append-only, fsynced."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.clock import Clock, SystemClock, utc_text
from ..core.durable_files import sync_directory
from ..core.errors import RunDirectoryError, SaveError
from ..core.units import SECONDS_PER_HOUR

LEDGER_FILE = "ledger.jsonl"
_VERSION = 1

# Phases outside the budget: before the clock starts, and after the guard has closed.
UNBILLED_PHASES = ("init", "export", "report")


@dataclass(kw_only=True)
class LedgerRecord:
    """A ledger read back: seconds by phase, billed and unbilled, over all sessions of the run.

    ``measured_s`` holds how long each save and each evaluation took, by phase.
    """

    billed_s: dict[str, float] = field(default_factory=dict)
    unbilled_s: dict[str, float] = field(default_factory=dict)
    device_hours: float = 0.0
    sessions: int = 0
    closed: bool = True
    last_reason: str | None = None
    heartbeat_s: float = 0.0
    damaged_lines: int = 0
    measured_s: dict[str, list[float]] = field(default_factory=dict)

    @property
    def total_billed_s(self) -> float:
        """Billed wall seconds over all sessions."""
        return sum(self.billed_s.values())

    def _apply(self, line: dict[str, Any]) -> None:
        event = line["event"]
        if event == "open":
            self.sessions += 1
            self.closed = False
            self.heartbeat_s = float(line["heartbeat_s"])
        elif event == "spend":
            phase, seconds = str(line["phase"]), float(line["seconds"])
            target = self.billed_s if line["billed"] else self.unbilled_s
            target[phase] = target.get(phase, 0.0) + seconds
            if line["billed"]:
                self.device_hours += seconds * int(line["devices"]) / SECONDS_PER_HOUR
        elif event == "measured":
            self.measured_s.setdefault(str(line["phase"]), []).append(float(line["seconds"]))
        elif event == "close":
            self.closed = True
            self.last_reason = line["reason"]


def read_ledger(run_dir: Path) -> LedgerRecord:
    """Add up a run's ledger; a missing one is empty. A line cut short by a crash is counted as damaged and skipped.

    Raises:
        RunDirectoryError: the ledger was written by a newer version.
    """
    record = LedgerRecord()
    try:
        text = (run_dir / LEDGER_FILE).read_text(errors="replace")
    except FileNotFoundError:
        return record
    for raw in text.splitlines():
        try:
            line = json.loads(raw)
            version = line["v"]
        except (ValueError, KeyError, TypeError):
            record.damaged_lines += 1
            continue
        if version != _VERSION:
            raise RunDirectoryError(
                f"{run_dir / LEDGER_FILE} has lines of version {version!r}; this fastbudget reads {_VERSION}."
            )
        try:
            record._apply(line)
        except (KeyError, TypeError, ValueError):
            record.damaged_lines += 1
    return record


class Ledger:
    """Bills time to phases and appends it to the run's file.

    Time passes from one phase to the next without a gap. A heartbeat is written at least every ``heartbeat_s``
    seconds, if `tick` is called that often; after a SIGKILL the next session bills one heartbeat as ``restart_loss``,
    the most that could have gone unrecorded.

    Args:
        run_dir: Existing directory.
        num_devices: Devices held, busy or not.
        clock: For tests.
        heartbeat_s: Longest unrecorded time.
    """

    def __init__(
        self, run_dir: Path, *, num_devices: int = 1, clock: Clock | None = None, heartbeat_s: float = 1.0
    ) -> None:
        self._clock = clock or SystemClock()
        self._num_devices = num_devices
        self._heartbeat_s = heartbeat_s
        self._path = run_dir / LEDGER_FILE
        self._phase: str | None = None
        self._since = self._last_write = self._clock.monotonic()
        self.before = read_ledger(run_dir)
        self._session_s = 0.0
        self._file = self._path.open("ab")
        # A crash may have cut the last line short: start on a new one.
        if self._file.tell() and not self._path.read_bytes().endswith(b"\n"):
            self._file.write(b"\n")
        sync_directory(run_dir)
        self._write("open", pid=os.getpid(), devices=num_devices, heartbeat_s=heartbeat_s)
        if not self.before.closed:
            self.add("restart_loss", self.before.heartbeat_s)

    def _write(self, event: str, **fields: Any) -> None:
        line = {"v": _VERSION, "at": utc_text(self._clock.wall()), "event": event, **fields}
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise SaveError(
                f"The ledger {self._path} can't be written: {error.strerror}. Spending that can't be recorded stops "
                "the run; free space or make the directory writable, then resume."
            ) from error
        self._last_write = self._clock.monotonic()

    def add(self, phase: str, seconds: float) -> None:
        """Record seconds spent outside this ledger's own clock: before it opened, or after it closed."""
        billed = phase not in UNBILLED_PHASES
        if billed:
            self._session_s += seconds
        self._write("spend", phase=phase, seconds=round(seconds, 6), devices=self._num_devices, billed=billed)

    def measured(self, phase: str, seconds: float) -> None:
        """Note how long one save or evaluation took, so that a later session knows what to keep back."""
        self._write("measured", phase=phase, seconds=round(seconds, 6))

    def enter(self, phase: str) -> None:
        """Bill the time so far to the current phase and begin another."""
        self._bill()
        self._phase = phase

    def _bill(self) -> None:
        now = self._clock.monotonic()
        if self._phase is not None and now > self._since:
            self.add(self._phase, now - self._since)
        self._since = now

    def tick(self) -> None:
        """Write a heartbeat if one is due; costs one clock reading otherwise."""
        if self._clock.monotonic() - self._last_write >= self._heartbeat_s:
            self._bill()

    def spent_s(self) -> float:
        """Billed wall seconds so far: earlier sessions, this one, and the phase under way."""
        running = 0.0 if self._phase is None else self._clock.monotonic() - self._since
        return self.before.total_billed_s + self._session_s + running

    def close(self, reason: str) -> None:
        """Bill what is open and mark how the session ended."""
        self._bill()
        self._phase = None
        self._write("close", reason=reason)
        self._file.close()


def record_unbilled(run_dir: Path, phase: str, seconds: float) -> None:
    """Note time outside the budget (see `UNBILLED_PHASES`) in a run's ledger while no session is open."""
    line = {"v": _VERSION, "at": utc_text(SystemClock().wall()), "event": "spend", "phase": phase}
    line |= {"seconds": round(seconds, 6), "devices": 1, "billed": False}
    with (run_dir / LEDGER_FILE).open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")
