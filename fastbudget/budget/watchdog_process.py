"""Starting the watchdog and talking to it. What it does is in the `watchdog` package."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

# -I -S: no user site, no site-packages, no variables of the trainer's Python. This directory's path is all it needs,
# and starting it is 30 ms; `python -m fastbudget...` would import what `fastbudget.budget` imports, torch among it.
_START = "import sys; sys.path.insert(0, sys.argv.pop()); from watchdog.main import main; main()"
_WRITE_S = 60.0


class WatchdogProcess:
    """A watchdog of this process.

    A new program (fork and exec), because a forked copy of the trainer would share its memory, its threads' locks and
    its CUDA context. It forks once more and leaves our session, so that no signal to our process group reaches it and
    nobody has to wait for it.

    Args:
        task: See `watchdog.main.Watchdog`, without what is made here. The descriptors stay the caller's.

    Raises:
        OSError: it can't be started: no pidfd (Linux before 5.3), no process left.
    """

    def __init__(self, **task: Any) -> None:
        if not hasattr(os, "pidfd_open"):
            raise OSError("this Python has no os.pidfd_open")
        pidfd = os.pidfd_open(os.getpid())  # by us: our number, asked for later, might be another's
        control_read, self._control = os.pipe()
        self._done, done_write = os.pipe()
        task |= {"pid": os.getpid(), "pidfd": pidfd, "control": control_read, "done": done_write}
        passed = [task[name] for name in ("state", "ledger", "heartbeat", "pidfd", "control", "done")]
        command = [sys.executable, "-I", "-S", "-c", _START, json.dumps(task), str(Path(__file__).parent)]
        try:
            starter = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[descriptor for descriptor in passed if descriptor >= 0],
                start_new_session=True,
            )
            if starter.wait() != 0:
                raise OSError(f"{sys.executable} failed with status {starter.returncode}")
        except BaseException:
            self.let_go()
            raise
        finally:
            for descriptor in (pidfd, control_read, done_write):
                os.close(descriptor)

    def send(self, line: bytes) -> bool:
        """Have a line of the ledger written; False if the watchdog is gone."""
        try:
            while line:
                line = line[os.write(self._control, line) :]
        except BrokenPipeError:
            return False
        return True

    def _done_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._done, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._done_within(0)

    def wait_until_written(self) -> None:
        """After the close line was sent: wait until it is on disk, or the disk is given up."""
        self._done_within(_WRITE_S)

    def let_go(self) -> None:
        """Close our ends. It goes on as long as this process lives."""
        os.close(self._control)
        os.close(self._done)
