"""Writing to the disk beside the watchdog's loop: a disk that takes seconds must not delay a deadline."""

import _thread
import errno
import time
from _queue import SimpleQueue

from .ledger_file import append_line, write_heartbeat

_RETRY_S = 0.5


class LedgerWriter:
    """Writes lines in order and heartbeats as they come, in a thread of its own.

    Args:
        ledger: Descriptor of the ledger; -1 writes nothing.
        heartbeat: Descriptor of the heartbeat.
        session: The session's number.
    """

    def __init__(self, ledger: int, heartbeat: int, session: int) -> None:
        self._ledger, self._heartbeat, self._session = ledger, heartbeat, session
        self._queue: SimpleQueue[bytes | tuple[dict[str, float], int] | None] = SimpleQueue()
        self._beats_waiting = 0
        self._finished = _thread.allocate_lock()
        self._finished.acquire()
        self.error = 0
        _thread.start_new_thread(self._work, ())

    def line(self, line: bytes) -> None:
        """Append a line when the ones before it are written."""
        self._queue.put(line)

    def beat(self, seconds: dict[str, float], steps: int) -> None:
        """Replace the heartbeat, unless one is still waiting for a slow disk."""
        if not self._beats_waiting:
            self._beats_waiting += 1
            self._queue.put((seconds, steps))

    def finish(self, timeout_s: float) -> None:
        """Wait until everything is on disk, or the disk is given up."""
        self._queue.put(None)
        self._finished.acquire(timeout=timeout_s)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._ledger < 0:
                continue
            if isinstance(item, bytes):
                self._append(item)
            else:
                try:
                    write_heartbeat(self._heartbeat, self._session, *item)
                except OSError as error:
                    self.error = error.errno or errno.EIO
                self._beats_waiting -= 1
        self._finished.release()

    def _append(self, line: bytes) -> None:
        """Append a line; a full disk gets a few seconds, for somebody may free space."""
        for attempt in range(10):
            try:
                append_line(self._ledger, line)
                self.error = 0
                return
            except OSError as error:
                self.error = error.errno or errno.EIO
                time.sleep(_RETRY_S if attempt else 0)
