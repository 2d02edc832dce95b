"""A run's ledger read back: what each session spent on what, and what was lost by its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import RunDirectoryError
from ..core.units import SECONDS_PER_HOUR
from .watchdog.ledger_file import VERSION

LEDGER_FILE = "ledger.jsonl"
HEARTBEAT_FILE = ".ledger.heartbeat"

_READABLE = (1, VERSION)
# What a restart can lose. Idle time stays idle time.
_WORK = ("init", "train", "evaluate", "checkpoint")


@dataclass(kw_only=True)
class SessionRecord:
    """One process's part of a run: from opening its ledger to its close or death.

    ``reason`` is how it ended: ``completed``, ``budget``, ``target``, ``patience``, ``devices``, ``sigint``,
    ``sigterm``, ``error: NAME``, ``killed`` (it died without a word), ``deadline`` (the watchdog killed it), ``machine
    lost`` (the watchdog died too); None while it runs. ``notes`` is what the program had written down, with ``at``.
    """

    number: int
    opened_at: str
    version: int = VERSION
    devices: int = 1
    pid: int = 0
    tick_s: float = 0.0
    closed_at: str | None = None
    reason: str | None = None
    steps: int = 0
    before_s: float = 0.0
    spent_s: dict[str, float] = field(default_factory=dict)
    saved_s: dict[str, float] = field(default_factory=dict)
    lost_s: dict[str, float] = field(default_factory=dict)
    unrecorded_s: float = 0.0
    unbilled_s: dict[str, float] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def billed_s(self) -> dict[str, float]:
        """Billed wall seconds by phase. What the session's end lost is ``restart_loss`` instead of what it was."""
        billed = _added([{"init": self.before_s}, self.spent_s])
        for phase, seconds in self.lost_s.items():
            billed[phase] -= seconds
        billed = _added([billed, {"restart_loss": sum(self.lost_s.values()) + self.unrecorded_s}])
        return {phase: seconds for phase, seconds in billed.items() if seconds > 1e-9}

    @property
    def total_billed_s(self) -> float:
        """Billed wall seconds."""
        return self.before_s + sum(self.spent_s.values()) + self.unrecorded_s

    @property
    def device_hours(self) -> float:
        """Billed seconds times devices, in hours."""
        return self.total_billed_s * self.devices / SECONDS_PER_HOUR

    def unsaved_s(self) -> dict[str, float]:
        """Return the seconds of work since the last durable checkpoint, by phase; all of it if there was none."""
        since = {phase: self.spent_s.get(phase, 0.0) - self.saved_s.get(phase, 0.0) for phase in _WORK}
        return {phase: round(seconds, 6) for phase, seconds in since.items() if seconds > 1e-6}


@dataclass(kw_only=True)
class LedgerRecord:
    """A ledger read back, over all sessions of the run.

    ``measured_s`` holds how long each save and each evaluation took, by phase. ``exhausted`` tells of the command for
    a spent budget: ``{"command", "exit_status"}``.
    """

    session_records: list[SessionRecord] = field(default_factory=list)
    measured_s: dict[str, list[float]] = field(default_factory=dict)
    outside_s: dict[str, float] = field(default_factory=dict)
    exhausted: dict[str, Any] | None = None
    damaged_lines: int = 0

    @property
    def billed_s(self) -> dict[str, float]:
        """Billed wall seconds by phase."""
        return _added(session.billed_s for session in self.session_records)

    @property
    def unbilled_s(self) -> dict[str, float]:
        """Seconds outside the budget by phase: before its clock started and after it stopped."""
        return _added([*(session.unbilled_s for session in self.session_records), self.outside_s])

    @property
    def total_billed_s(self) -> float:
        """Billed wall seconds."""
        return sum(session.total_billed_s for session in self.session_records)

    @property
    def device_hours(self) -> float:
        """Billed device-hours, each session with the devices it held."""
        return sum(session.device_hours for session in self.session_records)

    @property
    def sessions(self) -> int:
        """How often the run was started."""
        return len(self.session_records)

    @property
    def closed(self) -> bool:
        """Whether no session is open."""
        return not self.session_records or self.session_records[-1].reason is not None

    @property
    def last_reason(self) -> str | None:
        """How the last session ended; None while it runs."""
        return self.session_records[-1].reason if self.session_records else None

    def _apply(self, line: dict[str, Any]) -> None:
        event = line["event"]
        if event == "open":
            self._open(line)
        elif event == "measured":
            self.measured_s.setdefault(str(line["phase"]), []).append(float(line["seconds"]))
        elif event == "unbilled":
            _add(self.outside_s, str(line["phase"]), float(line["seconds"]))
        elif event == "exhausted":
            self.exhausted = {"command": line["command"], "exit_status": int(line["exit_status"])}
        elif line["v"] == 1:
            self._apply_first_version(event, line)
        else:
            self._apply_to_session(event, self.session_records[int(line["session"]) - 1], line)

    def _open(self, line: dict[str, Any]) -> None:
        session = SessionRecord(
            number=len(self.session_records) + 1,
            opened_at=str(line["at"]),
            version=int(line["v"]),
            devices=int(line["devices"]),
            pid=int(line.get("pid", 0)),
            tick_s=float(line["heartbeat_s" if line["v"] == 1 else "tick_s"]),
            before_s=float(line.get("before_s", 0.0)),
        )
        self.session_records.append(session)

    @staticmethod
    def _apply_to_session(event: str, session: SessionRecord, line: dict[str, Any]) -> None:
        if event == "lost":
            session.lost_s = {str(phase): float(seconds) for phase, seconds in line["seconds"].items()}
            session.unrecorded_s = float(line["unrecorded_s"])
            return
        if event == "note":
            session.notes.append({"at": line["at"], **line["note"]})
            return
        # Seconds are all of the session's so far: a damaged line takes nothing with it.
        session.spent_s = {str(phase): float(seconds) for phase, seconds in line["seconds"].items()}
        session.steps = int(line["steps"])
        if event == "saved":
            session.saved_s = dict(session.spent_s)
        elif event == "close":
            session.reason, session.closed_at = str(line["reason"]), str(line["at"])

    def _apply_first_version(self, event: str, line: dict[str, Any]) -> None:
        session = self.session_records[-1] if self.session_records else None
        if event == "spend":
            phase, seconds = str(line["phase"]), float(line["seconds"])
            if not line["billed"]:
                _add(session.unbilled_s if session else self.outside_s, phase, seconds)
            elif session:
                _add(session.spent_s, phase, seconds)
        elif event == "close" and session:
            session.reason, session.closed_at = str(line["reason"]), str(line["at"])


def _add(target: dict[str, float], phase: str, seconds: float) -> None:
    target[phase] = target.get(phase, 0.0) + seconds


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for phase, seconds in part.items():
            if seconds:
                _add(total, phase, seconds)
    return total


def read_ledger(run_dir: Path) -> LedgerRecord:
    """Add up a run's ledger, up to the latest heartbeat of a session that is open; a missing one is empty.

    A line cut short by a crash is counted as damaged and skipped.

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
        if version not in _READABLE:
            raise RunDirectoryError(
                f"{run_dir / LEDGER_FILE} has lines of version {version!r}; this fastbudget reads up to {VERSION}. "
                "Use the fastbudget that wrote it, or give a new run_dir."
            )
        try:
            record._apply(line)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            record.damaged_lines += 1
    if not record.closed:
        _take_heartbeat(run_dir, record.session_records[-1])
    return record


def _take_heartbeat(run_dir: Path, session: SessionRecord) -> None:
    """Bring an open session up to its last heartbeat."""
    try:
        beat = json.loads((run_dir / HEARTBEAT_FILE).read_bytes())
        if int(beat["session"]) != session.number:
            return
        seconds = {str(phase): float(value) for phase, value in beat["seconds"].items()}
        steps = int(beat["steps"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # none was written yet, or the machine stopped in the middle of one
    if sum(seconds.values()) > sum(session.spent_s.values()):
        session.spent_s, session.steps = seconds, steps
