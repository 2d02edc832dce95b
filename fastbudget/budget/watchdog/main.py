"""The watchdog's loop. Started with one argument: the JSON of a `Task`'s fields."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any

from .ledger_file import append_line, make_line
from .ledger_writer import LedgerWriter
from .process_tree import NAME, Process, ProcessTree
from .shared_state import (
    DEADLINE_NEAR,
    LIMIT_NS,
    NO_LIMIT,
    OPENED_NS,
    STEPS,
    TERMINATE_AT_GRACE,
    WRITE_ERROR,
    SharedState,
    now_ns,
)

# Between two lines of a long session. The heartbeat tells more often, the ledger only stays short.
_SPENT_EVERY_NS = 60 * 10**9
_LOOK_FOR_DESCENDANTS_NS = 10**9
_SPENT_REASONS = ("budget", "deadline")
# It ends with the trainer: a SIGTERM for the whole group must not stop the billing first.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def run_when_exhausted(command: list[str] | str, log_path: str) -> int:
    """Run the user's command, a shell's if it is one string; returns its exit status."""
    with open(log_path, "ab") as log:  # noqa: PTH123
        try:
            done = subprocess.run(
                command, shell=isinstance(command, str), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        except OSError as error:
            log.write(f"{command}: {error}\n".encode())
            return 127
    return done.returncode


class Watchdog:
    """Watches one trainer until it closes its session or is dead.

    Args:
        task: ``state``, ``ledger``, ``heartbeat``, ``control``, ``done``: descriptors. ``pid``, ``pidfd``: the trainer.
            ``session``, ``tick_s``, ``grace_s``, ``on_exhausted``, ``log_path``.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._state = SharedState(task["state"])
        self._trainer = Process(task["pid"], task["pidfd"])
        self._tree = ProcessTree([self._trainer])
        self._writer = LedgerWriter(task["ledger"], task["heartbeat"], task["session"])
        self._received = b""
        self._close_reason: str | None = None
        self._killed = False

    def watch(self) -> None:
        """Bill, enforce, and record the end."""
        tick_ns, grace_ns = int(self._task["tick_s"] * 1e9), int(self._task["grace_s"] * 1e9)
        control = self._task["control"]
        os.set_blocking(control, False)
        poll = select.poll()
        poll.register(self._trainer.descriptor, select.POLLIN)
        poll.register(control, select.POLLIN)
        slots = self._state.slots
        next_tick = now_ns()
        next_line = next_tick + _SPENT_EVERY_NS
        next_look = next_tick
        while self._close_reason is None:
            now = now_ns()
            deadline = slots[OPENED_NS] + slots[LIMIT_NS] if slots[LIMIT_NS] < NO_LIMIT else NO_LIMIT
            if now >= deadline - grace_ns and not slots[DEADLINE_NEAR]:
                slots[DEADLINE_NEAR] = 1
                if slots[TERMINATE_AT_GRACE]:
                    self._trainer.send(signal.SIGTERM)
            if now >= deadline:
                # The trainer may have closed at the last moment: read what it sent before judging.
                self._receive(control)
                if self._close_reason is None:
                    self._killed = True
                    self._tree.kill()
            if now >= next_tick:
                self._writer.beat(self._state.seconds_by_phase(now), slots[STEPS])
                slots[WRITE_ERROR] = self._writer.error
                next_tick = now + tick_ns
            if now >= next_look:
                self._tree.refresh()
                next_look = now + _LOOK_FOR_DESCENDANTS_NS
            if now >= next_line:
                self._record("spent", now)
                next_line = now + _SPENT_EVERY_NS
            wake = next_tick
            if not self._killed:
                wake = min(wake, deadline if slots[DEADLINE_NEAR] else deadline - grace_ns)
            for descriptor, happened in poll.poll(max(1, (wake - now_ns()) / 1e6)):
                if descriptor == control:
                    self._receive(control)
                    if not happened & select.POLLIN:
                        poll.unregister(control)
                elif self._close_reason is None:
                    died = now_ns()
                    self._receive(control)  # what it managed to say
                    if self._close_reason is None:
                        self._close_reason = "deadline" if self._killed else "killed"
                        self._record("close", died, reason=self._close_reason)
        self._finish()

    def _record(self, event: str, at_ns: int, **fields: Any) -> None:
        spent = {"seconds": self._state.seconds_by_phase(at_ns), "steps": self._state.slots[STEPS]}
        self._writer.line(make_line(event, {"session": self._task["session"], **fields, **spent}))

    def _receive(self, control: int) -> None:
        """Take over the lines the trainer sent."""
        while True:
            try:
                data = os.read(control, 65536)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._writer.line(line + b"\n")
                if b'"event": "close"' in line:
                    self._close_reason = json.loads(line)["reason"]

    def _finish(self) -> None:
        self._writer.finish(timeout_s=30.0)
        self._state.slots[WRITE_ERROR] = self._writer.error
        ledger = self._task["ledger"]
        if ledger >= 0:
            fcntl.flock(ledger, fcntl.LOCK_UN)
        os.close(self._task["done"])  # the trainer waits for this, not for the command
        command = self._task["on_exhausted"]
        if command is None or self._close_reason not in _SPENT_REASONS:
            return
        for number in _IGNORED:  # the command inherits them
            signal.signal(number, signal.SIG_DFL)
        status = run_when_exhausted(command, self._task["log_path"])
        if ledger >= 0:
            append_line(ledger, make_line("exhausted", {"command": command, "exit_status": status}))


def main() -> None:
    """Leave the trainer's family and session, then watch it."""
    if os.fork():
        os._exit(0)
    with open("/proc/self/comm", "w") as comm:  # noqa: PTH123
        comm.write(NAME)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    Watchdog(json.loads(sys.argv[1])).watch()
