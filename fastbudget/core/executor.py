"""Where independent pieces of work run: here, in threads, in processes, or on a cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeVar

Tag = TypeVar("Tag")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Pending(Protocol):
    """A result that may not be there yet."""

    def result(self) -> Any:
        """Wait for it; raises what the work raised."""
        ...

    def cancel(self) -> bool:
        """Don't start the work, if that is still possible."""
        ...


class Executor(Protocol):
    """Runs functions elsewhere. Those of `concurrent.futures` are executors."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Pending:
        """Start ``function(*args)``."""
        ...


def ordered_results(
    executor: Executor | None,
    function: Callable[[Item], Result],
    items: Iterable[tuple[Tag, Item]],
    *,
    in_flight: int | None = None,
) -> Generator[tuple[Tag, Result], None, None]:
    """Yield each item's tag with its result, in the order of the items and never of completion.

    Items are taken only as they are needed, so that closing the iterator ends the work early.

    Args:
        executor: None runs each piece here, when its result is asked for.
        function: For processes it must be picklable, as must be the items.
        items: (tag, item); the tags stay here. May be endless.
        in_flight: How many pieces are started ahead; None: twice the executor's ``max_workers``, or the CPUs.
    """
    if executor is None:
        for tag, item in items:
            yield tag, function(item)
        return
    workers = getattr(executor, "_max_workers", None) or os.cpu_count() or 1
    ahead = max(1, in_flight or 2 * workers)
    started: deque[tuple[Tag, Pending]] = deque()
    remaining = iter(items)
    try:
        while True:
            while len(started) < ahead and (following := next(remaining, None)) is not None:
                started.append((following[0], executor.submit(function, following[1])))
            if not started:
                return
            tag, pending = started.popleft()
            yield tag, pending.result()
    finally:
        for _, pending in started:
            pending.cancel()
