"""A sink that can neither stall nor end a run, whatever its tracker does."""

from __future__ import annotations

import atexit
import math
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol

from ..core.errors import InvalidInputError

# A tracker that failed so often in a row is given up.
_GIVE_UP_AFTER = 10


class Writer(Protocol):
    """What a tracker has to offer. Both methods may block and may raise."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Take in the numbers of one record."""
        ...

    def close(self) -> None:
        """Flush and end."""
        ...


class BackgroundSink:
    """Hands records to a tracker on an own thread.

    Calling it costs a few microseconds and never blocks: when the tracker is slower than the run, the newest records
    are dropped and counted. A tracker that raises, hangs or can't even be opened is warned about once; the run goes on.

    Args:
        open_writer: Opens the tracker; called on the thread, since that may reach for a network.
        name: For messages.
        capacity: Records that may wait.
        close_timeout_s: Longest time `close` waits for what is still queued.
    """

    def __init__(
        self, open_writer: Callable[[], Writer], *, name: str, capacity: int = 10_000, close_timeout_s: float = 10.0
    ) -> None:
        if capacity < 1:
            raise InvalidInputError(f"capacity must be at least 1, got {capacity}.")
        self.name = name
        self.dropped = 0
        self._close_timeout_s = close_timeout_s
        self._records: queue.Queue[Mapping[str, Any] | None] = queue.Queue(capacity)
        self._closed = False
        # Daemonic: a tracker that hangs must not keep the process alive.
        self._thread = threading.Thread(
            target=_write_all, args=(self._records, open_writer, name), name=f"{name} sink", daemon=True
        )
        self._thread.start()
        atexit.register(_close_if_alive, weakref.ref(self))

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Queue a record; drop it if the queue is full or the sink closed."""
        try:
            if self._closed:
                raise queue.Full
            self._records.put_nowait(dict(record))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued and end the tracker, waiting ``close_timeout_s`` at most."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + self._close_timeout_s
        try:
            self._records.put(None, timeout=self._close_timeout_s)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        if self._thread.is_alive():
            _warn(f"The {self.name} sink did not finish within {self._close_timeout_s:g} s; it was left behind.")
        if self.dropped:
            _warn(f"The {self.name} sink dropped {self.dropped} records: the tracker was slower than the run.")

    def __enter__(self) -> BackgroundSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_if_alive(reference: weakref.ref[BackgroundSink]) -> None:
    sink = reference()
    if sink is not None:
        sink.close()


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _write_all(records: queue.Queue[Mapping[str, Any] | None], open_writer: Callable[[], Writer], name: str) -> None:
    """Write records until None comes. Owns no reference to the sink, so that the sink can be collected."""
    try:
        writer = open_writer()
    except Exception as error:
        _warn(f"The {name} sink could not be opened: {error!r}. The run goes on without it.")
        while records.get() is not None:
            pass
        return
    failures = 0
    while (record := records.get()) is not None:
        if failures >= _GIVE_UP_AFTER:
            continue
        try:
            writer.write(int(record.get("step", 0)), dict(numbers_of(record)))
            failures = 0
        except Exception as error:
            failures += 1
            if failures == 1:
                _warn(f"The {name} sink failed: {error!r}. The run goes on.")
            elif failures == _GIVE_UP_AFTER:
                _warn(f"The {name} sink failed {failures} times in a row and was given up.")
    try:
        writer.close()
    except Exception as error:
        _warn(f"The {name} sink could not be closed: {error!r}.")


def numbers_of(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield a record's finite numbers under their names; those of nested mappings as ``outer/inner``. Not the step."""
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from numbers_of(value, f"{name}/")
        elif isinstance(value, bool) or not isinstance(value, int | float) or name == "step":
            continue
        elif math.isfinite(value):
            yield name, float(value)
