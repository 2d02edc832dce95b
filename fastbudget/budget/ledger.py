"""Billing a run's time: JSON lines that survive the process, one file per run directory, append-only, fsynced."""

from __future__ import annotations

import fcntl
import os
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ..core.clock import Clock, utc_text
from ..core.durable_files import sync_directory
from ..core.errors import InvalidInputError, RunDirectoryError, SaveError
from ..core.units import SECONDS_PER_HOUR
from .ledger_record import HEARTBEAT_FILE, LEDGER_FILE, LedgerRecord, read_ledger
from .watchdog.ledger_file import HEARTBEAT_BYTES, append_line, end_line, make_line, write_heartbeat
from .watchdog.shared_state import (
    DEADLINE_NEAR,
    LIMIT_NS,
    NO_LIMIT,
    OPENED_NS,
    STEPS,
    TERMINATE_AT_GRACE,
    WRITE_ERROR,
    SharedState,
)
from .watchdog_process import WatchdogProcess

# Phases outside the budget: before the clock starts, and after the guard has closed.
UNBILLED_PHASES = ("init", "export", "report")

# How long the watchdog of a dead process may take to write its last lines on a slow disk, and a killed one to die.
_HANDOVER_S, _DYING_S = 30.0, 1.0


def nanosecond_clock(clock: Clock | None) -> Callable[[], int]:
    """Return the ledger's clock: the one it shares with the watchdog, or a test's."""
    if clock is not None:
        return lambda: round(clock.monotonic() * 1e9)
    return partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)  # `now_ns` without a Python frame: it's asked every step


class Ledger:
    """Bills time to phases, by a watchdog process that goes on when this one is killed.

    Time passes from one phase to the next without a gap. This process only stores into shared memory; the watchdog
    writes the lines, and a heartbeat every ``tick_s``, and ends the process at the limit (see `set_limit`). Opening a
    ledger whose last session died bills what was lost: work since the last checkpoint becomes ``restart_loss``, and
    where the watchdog died too, one tick is added for what no heartbeat tells of.

    Args:
        run_dir: Existing directory; one process at a time.
        num_devices: Devices held, busy or not.
        before_s: Seconds to bill that passed before the ledger opened.
        tick_s: Between two heartbeats: the most that can go unrecorded.
        grace_s: From the SIGTERM to the SIGKILL at the limit; None: one tick.
        on_exhausted: Command that the watchdog runs once the session ended because its budget is spent: a list of
            arguments, or a string for the shell.
        clock: For tests; without a watchdog, which lives by the machine's clock.

    Raises:
        RunDirectoryError: another process is writing it, or it is of a newer version.
        SaveError: it can't be written.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        num_devices: int = 1,
        before_s: float = 0.0,
        tick_s: float = 0.25,
        grace_s: float | None = None,
        on_exhausted: list[str] | str | None = None,
        clock: Clock | None = None,
    ) -> None:
        if tick_s <= 0:
            raise InvalidInputError(f"tick_s must be above 0, got {tick_s}.")
        self.run_dir, self.num_devices, self.tick_s = run_dir, num_devices, tick_s
        self.grace_s = tick_s if grace_s is None else grace_s
        self._on_exhausted, self._clock = on_exhausted, clock
        self._now_ns = nanosecond_clock(clock)
        self._opened_ns = self.now_ns()  # opening takes time too
        self._path = run_dir / LEDGER_FILE
        self._watchdog: WatchdogProcess | None = None
        self._error = 0
        self._ledger_fd = self._open_locked()
        self._heartbeat_fd = -1
        try:
            end_line(self._ledger_fd)
            self.before = self._settled(read_ledger(run_dir))
            self.session = self.before.sessions + 1
            self._before_s = self.before.total_billed_s + before_s
            self._before_device_hours = self.before.device_hours + before_s * num_devices / SECONDS_PER_HOUR
            self._heartbeat_fd = self._open_heartbeat()
            self._state = SharedState()
            self._state.slots[OPENED_NS] = self._opened_ns
            self._write("open", pid=os.getpid(), devices=num_devices, tick_s=tick_s, before_s=round(before_s, 6))
            sync_directory(run_dir)
            if clock is None:
                self._start_watchdog()
        except BaseException as error:
            self._close_files()
            if isinstance(error, OSError) and not isinstance(error, SaveError):
                self._cannot_write(error)
            raise

    # -- the files and who writes them -----------------------------------------------------------------------------

    def _open_locked(self) -> int:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._cannot_write(error)
        begun = time.monotonic()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                record = read_ledger(self.run_dir)
                pid = record.session_records[-1].pid if record.session_records else 0
                # The watchdog of a dead process holds the lock until it has written how that ended.
                patience_s = _HANDOVER_S if record.closed or not _runs(pid) else _DYING_S
                if time.monotonic() - begun < patience_s:
                    time.sleep(0.01)
                    continue
                os.close(descriptor)
                raise RunDirectoryError(
                    f"{self.run_dir} is in use by process {pid or 'unknown'}; wait for it, or give a new run_dir."
                ) from None
            except OSError:
                pass  # a file system without locks
            return descriptor

    def _open_heartbeat(self) -> int:
        descriptor = os.open(self.run_dir / HEARTBEAT_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # Its block is taken now, so that heartbeats can be written when the disk is full.
        os.pwrite(descriptor, b" " * HEARTBEAT_BYTES, 0)
        return descriptor

    def _close_files(self) -> None:
        for descriptor in (self._ledger_fd, self._heartbeat_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._ledger_fd = self._heartbeat_fd = -1

    def _start_watchdog(self) -> None:
        """Hand the files over: from then on only the watchdog holds the lock, and it ends with the watchdog."""
        try:
            self._watchdog = WatchdogProcess(
                state=self._state.descriptor,
                ledger=self._ledger_fd,
                heartbeat=self._heartbeat_fd,
                session=self.session,
                tick_s=self.tick_s,
                grace_s=self.grace_s,
                on_exhausted=self._on_exhausted,
                log_path=str((self.run_dir / "on_exhausted.log").absolute()),
            )
        except OSError as error:
            warnings.warn(
                f"The ledger's watchdog can't be started ({error}): the budget is kept by the training loop alone, and "
                "a SIGKILL leaves up to a tick unrecorded.",
                RuntimeWarning,
                stacklevel=5,
            )
            return
        self._close_files()

    def _replace_watchdog(self) -> None:
        """Start another watchdog; the shared memory knows all that the first one knew."""
        warnings.warn("The ledger's watchdog was killed; another one takes over.", RuntimeWarning, stacklevel=5)
        assert self._watchdog is not None
        self._watchdog.let_go()
        self._watchdog = None
        self._reopen_files()
        self._start_watchdog()

    def _reopen_files(self) -> None:
        self._ledger_fd, self._heartbeat_fd = self._open_locked(), self._open_heartbeat()
        end_line(self._ledger_fd)

    def _write(self, event: str, **fields: Any) -> None:
        line = make_line(event, fields, None if self._clock is None else utc_text(self._clock.wall()))
        if self._watchdog is not None and not self._watchdog.send(line):
            self._replace_watchdog()
            if self._watchdog is not None:
                self._watchdog.send(line)
                return
        if self._watchdog is None:
            try:
                append_line(self._ledger_fd, line)
            except OSError as error:
                self._cannot_write(error)

    def _cannot_write(self, error: OSError) -> NoReturn:
        raise SaveError(
            f"The ledger {self._path} can't be written: {error.strerror}. Spending that can't be recorded stops the "
            "run; free space or make the directory writable, then resume."
        ) from error

    def _settled(self, record: LedgerRecord) -> LedgerRecord:
        """Bill what the end of the last session lost."""
        last = record.session_records[-1] if record.session_records else None
        if last is None or last.lost_s or last.unrecorded_s:
            return record
        lost: dict[str, float] = {}
        unrecorded = 0.0
        if last.reason is None:
            unrecorded = last.tick_s
            if last.version > 1:
                last.reason = "machine lost"
                self._write("close", session=last.number, reason=last.reason, seconds=last.spent_s, steps=last.steps)
        if last.version > 1 and last.reason not in _SAVED_AT_THE_END:
            lost = last.unsaved_s()
        if lost or unrecorded:
            self._write("lost", session=last.number, seconds=lost, unrecorded_s=unrecorded)
            last.lost_s, last.unrecorded_s = lost, unrecorded
        return record

    # -- billing ---------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Return the clock's time."""
        return self._now_ns()

    def set_limit(self, total_s: float, *, terminate: bool = False) -> None:
        """Have the watchdog end this process and its descendants once so many seconds are billed, over all sessions.

        They are killed within a tick after the limit. A session that opens with nothing left has one tick to close.

        Args:
            total_s: Billed seconds.
            terminate: Whether this process handles a SIGTERM ``grace_s`` before.
        """
        slots = self._state.slots
        slots[TERMINATE_AT_GRACE] = int(terminate)
        slots[LIMIT_NS] = min(NO_LIMIT, int(max(self.tick_s, total_s - self._before_s) * 1e9))

    def spent_s(self) -> float:
        """Return billed wall seconds so far: earlier sessions and this one."""
        return self._before_s + (self.now_ns() - self._opened_ns) / 1e9

    def device_hours(self) -> float:
        """Return billed device-hours so far: earlier sessions with the devices they held, and this one."""
        session_s = (self.now_ns() - self._opened_ns) / 1e9
        return self._before_device_hours + session_s * self.num_devices / SECONDS_PER_HOUR

    @property
    def phase(self) -> str:
        """The phase under way."""
        return self._state.phase

    def enter(self, phase: str) -> None:
        """Bill the time so far to the current phase and begin another: one of `LIVE_PHASES`."""
        self._state.enter(phase, self.now_ns())

    @property
    def steps(self) -> int:
        """Steps taken in this session."""
        return self._state.slots[STEPS]

    def count_step(self) -> None:
        """Count a step."""
        self._state.slots[STEPS] += 1

    @property
    def deadline_is_near(self) -> bool:
        """Whether the time for the watchdog's SIGTERM has come."""
        return bool(self._state.slots[DEADLINE_NEAR])

    def tick(self) -> None:
        """See to what is due every ``tick_s``.

        Raises:
            SaveError: the ledger can't be written.
        """
        if self._watchdog is None and self._heartbeat_fd >= 0:
            seconds = self._state.seconds_by_phase(self.now_ns())
            write_heartbeat(self._heartbeat_fd, self.session, seconds, self.steps)
        elif self._watchdog is not None and self._watchdog.is_gone():
            self._replace_watchdog()
        elif error := self._state.slots[WRITE_ERROR]:
            self._cannot_write(OSError(error, os.strerror(error)))

    def measured(self, phase: str, seconds: float) -> None:
        """Note how long one save or evaluation took, so that a later session knows what to keep back."""
        self._write("measured", phase=phase, seconds=round(seconds, 6))

    def saved(self) -> None:
        """Note that the work so far is durable: a crash no longer loses it."""
        self._write("saved", **self._spent())

    def note(self, note: Mapping[str, Any]) -> None:
        """Write down something that happened, beside the spending."""
        self._write("note", session=self.session, note=dict(note))

    def _spent(self) -> dict[str, Any]:
        seconds = self._state.seconds_by_phase(self.now_ns())
        return {"session": self.session, "seconds": seconds, "steps": self.steps}

    def record(self) -> LedgerRecord:
        """Return the ledger as it would be read now, with this session up to this moment."""
        record = read_ledger(self.run_dir)
        session = record.session_records[self.session - 1]
        session.spent_s, session.steps = self._state.seconds_by_phase(self.now_ns()), self.steps
        return record

    def close(self, reason: str) -> None:
        """Bill what is open and mark how the session ended; returns once that is on disk.

        Raises:
            SaveError: the ledger can't be written.
        """
        try:
            self._write("close", reason=reason, **self._spent())
            if self._watchdog is not None:
                self._watchdog.wait_until_written()
                if error := self._state.slots[WRITE_ERROR]:
                    self._cannot_write(OSError(error, os.strerror(error)))
        finally:
            if self._watchdog is not None:
                self._watchdog.let_go()
            self._close_files()
            self._state.close()


# The program had the chance to save before it closed the session.
_SAVED_AT_THE_END = ("completed", "budget", "target", "patience", "devices", "sigint", "sigterm")


def _runs(pid: int) -> bool:
    """Whether there is such a process, and not only its exit status."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def record_unbilled(run_dir: Path, phase: str, seconds: float) -> None:
    """Note time outside the budget (see `UNBILLED_PHASES`) in a run's ledger while no session is open."""
    descriptor = os.open(run_dir / LEDGER_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        append_line(descriptor, make_line("unbilled", {"phase": phase, "seconds": round(seconds, 6)}))
    finally:
        os.close(descriptor)
