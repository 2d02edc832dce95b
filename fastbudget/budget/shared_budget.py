"""One budget for several runs, such as the trials of a sweep: each reserves its part before it starts."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.budget import Budget
from ..core.errors import BudgetTooSmallError, RunDirectoryError
from ..core.units import SECONDS_PER_HOUR, format_seconds
from .ledger_record import LEDGER_FILE, read_ledger
from .watchdog.ledger_file import append_line, end_line, make_line

SHARED_LEDGER_FILE = "shared_ledger.jsonl"
_VERSION = 2


@dataclass(frozen=True)
class _Reservation:
    """What a run may spend over all its sessions, in device-seconds; ``settled`` once it has ended."""

    run_dir: Path
    device_s: float
    settled: bool


class SharedBudget:
    """A budget that several runs spend together, at the same time or one after the other, and never overspend.

    Give it to each run's guard: ``BudgetGuard(trial_budget, run_dir=..., shared=SharedBudget("runs/sweep", budget))``.
    A run reserves what its own budget allows, or what is left if that is less, and gives back what it didn't spend. What
    a killed run had reserved comes back once its watchdog has written how much it spent. All runs and the directory
    must be on file systems with file locks.

    Args:
        directory: Holds the shared ledger; made when missing. The same for all runs.
        budget: For all runs together. ``wall_hours`` count from the first run's start, used or not.
    """

    def __init__(self, directory: str | os.PathLike[str], budget: Budget) -> None:
        self.directory = Path(directory).absolute()
        self.budget = budget
        self._path = self.directory / SHARED_LEDGER_FILE

    def left_device_s(self) -> float:
        """Return the device-seconds that nobody has spent or reserved; wall time is not in it."""
        with self._locked() as file:
            return self._device_limit_s() - sum(self._claims(file).values())

    def reserve(self, run_dir: Path, wanted_s: float, num_devices: int) -> float:
        """Reserve time for a run whose ledger is open.

        Args:
            run_dir: The run's.
            wanted_s: Billed wall seconds it may reach at most, over all its sessions.
            num_devices: Devices it holds.

        Returns:
            The billed wall seconds it may reach.

        Raises:
            BudgetTooSmallError: nothing is left.
        """
        run_dir = run_dir.absolute()
        with self._locked() as file:
            claims = self._claims(file, opening=run_dir)
            spent_s = claims.pop(run_dir, 0.0)  # by the run's earlier sessions
            others_s = sum(claims.values())
            granted = min(wanted_s * num_devices, self._device_limit_s() - others_s)
            granted_s = min(granted / num_devices, spent_s / num_devices + self._wall_left_s(file))
            if granted_s * num_devices <= spent_s:
                raise BudgetTooSmallError(
                    f"The budget shared in {self.directory} has nothing left: its runs spent or reserved "
                    f"{format_seconds(others_s + spent_s)} of device time. Raise it, or wait for a run to end."
                )
            fields = {"run_dir": os.path.relpath(run_dir, self.directory), "device_s": granted_s * num_devices}
            append_line(file, make_line("reserve", fields))
            return granted_s

    def settle(self, run_dir: Path) -> None:
        """Give back what a run that has closed its ledger didn't spend."""
        with self._locked() as file:
            self._settle(file, run_dir.absolute())

    def _settle(self, file: int, run_dir: Path) -> float:
        device_s = read_ledger(run_dir).device_hours * SECONDS_PER_HOUR
        fields = {"run_dir": os.path.relpath(run_dir, self.directory), "device_s": device_s}
        append_line(file, make_line("settle", fields))
        return device_s

    def _device_limit_s(self) -> float:
        return min(self.budget.limits_in_device_seconds().values(), default=float("inf"))

    def _wall_left_s(self, file: int) -> float:
        if self.budget.wall_hours is None:
            return float("inf")
        lines = list(_lines(file))
        started = float(lines[0]["started_s"])
        return max(0.0, started + self.budget.wall_hours * SECONDS_PER_HOUR - time.time())

    def _claims(self, file: int, opening: Path | None = None) -> dict[Path, float]:
        """Return what each run has spent or, while it runs, reserved; settles the runs that have died."""
        latest: dict[Path, _Reservation] = {}
        for line in _lines(file):
            if line["event"] in ("reserve", "settle"):
                run_dir = Path(os.path.normpath(self.directory / line["run_dir"]))
                latest[run_dir] = _Reservation(run_dir, float(line["device_s"]), line["event"] == "settle")
        claims = {}
        for run_dir, reservation in latest.items():
            if reservation.settled or (run_dir != opening and _is_running(run_dir)):
                claims[run_dir] = reservation.device_s
            else:
                claims[run_dir] = self._settle(file, run_dir)
        return claims

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self.directory.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            end_line(file)
            if os.fstat(file).st_size == 0:
                append_line(file, make_line("share", {"started_s": time.time(), "budget": self.budget.to_json()}))
            yield file
        finally:
            os.close(file)


def _lines(file: int) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for raw in os.pread(file, os.fstat(file).st_size, 0).splitlines():
        try:
            line = json.loads(raw)
        except ValueError:
            continue  # cut short by a crash before anybody relied on it
        if line["v"] != _VERSION:
            raise RunDirectoryError(f"The shared ledger has lines of version {line['v']!r}; this reads {_VERSION}.")
        lines.append(line)
    return lines


def _is_running(run_dir: Path) -> bool:
    """Whether a run's watchdog, or the run itself while it starts, holds the lock of its ledger."""
    try:
        ledger = os.open(run_dir / LEDGER_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(ledger, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(ledger)
