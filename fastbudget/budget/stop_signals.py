"""SIGINT and SIGTERM as a wish to stop, while a guard is open."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_REASONS = {signal.SIGINT: "sigint", signal.SIGTERM: "sigterm"}


class StopSignals:
    """Calls a function with ``"sigint"`` or ``"sigterm"``; a second one of its kind has its usual effect.

    In a thread other than the main one nothing is installed: Python allows it there only.

    Args:
        on_stop: Called in the main thread, between two bytecodes of whatever runs; returns whether the signal was
            the user's, so that the next one must not be swallowed.
    """

    def __init__(self, on_stop: Callable[[str], bool]) -> None:
        self._on_stop = on_stop
        self._old: dict[signal.Signals, Any] = {}

    def install(self) -> bool:
        """Take the signals over; returns whether that was possible."""
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in _REASONS:
            self._old[number] = signal.signal(number, self._handle)
        return True

    def restore(self) -> None:
        """Put the former handlers back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        caught = signal.Signals(number)
        if self._on_stop(_REASONS[caught]):
            # The second of its kind must not be swallowed: the loop may be stuck.
            signal.signal(number, self._old.get(caught, signal.SIG_DFL))
