"""One rank's failure ends them all: with its own traceback, and without waiting for any time-out."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch.distributed as dist

from ...core.errors import BudgetSpent, RankFailedError

_KEY = "fastbudget/failed_rank"
_POLL_S = 0.25
# How long a rank waits to hear why its collective failed, and, knowing it, for its own main thread to come to an end.
_NEWS_S, _ENDING_S = 3.0, 5.0

# A run that failed must not end the next one of the same processes.
_run_numbers = itertools.count()


class RankFailures:
    """Where ranks tell of their failures: the store of the process group, which outlives all ranks under torchrun."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        store = dist.distributed_c10d._get_default_store()
        # A connection of its own: one that waits in the main thread must not keep the watch from looking.
        self._store = store.clone() if hasattr(store, "clone") else store
        self._run = f"{_KEY}/{next(_run_numbers)}"

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Tell the other ranks of an error that leaves the block, and end this rank when one of them does.

        Raises:
            RankFailedError: another rank failed; its traceback is on its own stderr.
        """
        watch = _Watch(self)
        watch.start()
        try:
            yield
        except BudgetSpent:
            raise
        except BaseException as error:
            if "failed_first_on" in error.__dict__:  # told by the rank it came from
                raise
            elsewhere = self._wait_for_news() if _is_lost_connection(error) else self._tell(error)
            if elsewhere is None:
                if _is_lost_connection(error):
                    error.add_note("Another rank has gone without a word: it was killed, or ran out of memory.")
                raise
            if not _is_lost_connection(error) and _same_error(error, elsewhere):
                error.__dict__["failed_first_on"] = elsewhere["rank"]
                raise
            raise _ended_by(elsewhere) from None
        finally:
            watch.stop()

    def first(self) -> dict[str, Any] | None:
        """Return what the first rank that failed told; None while none has."""
        return json.loads(self._store.get(self._run)) if self._store.check([self._run]) else None

    def _tell(self, error: BaseException) -> dict[str, Any] | None:
        """Tell of a failure; returns that of another rank, if one was first."""
        text = "".join(traceback.format_exception_only(error)).strip()
        told = {"rank": self.rank, "error": text, "at": time.time()}
        try:
            first = json.loads(self._store.compare_set(self._run, "", json.dumps(told)))
        except RuntimeError:  # the store went with its process
            return None
        return first if first["rank"] != self.rank else None

    def _wait_for_news(self) -> dict[str, Any] | None:
        until = time.monotonic() + _NEWS_S
        while time.monotonic() < until:
            try:
                first = self.first()
            except RuntimeError:
                return None
            if first is not None and first["rank"] != self.rank:
                return first
            time.sleep(0.05)
        return None


class _Watch(threading.Thread):
    """Ends this process when another rank failed and the main thread doesn't notice: it may hang in a collective."""

    def __init__(self, failures: RankFailures) -> None:
        super().__init__(name="fastbudget-rank-watch", daemon=True)
        self._failures, self._stopped = failures, threading.Event()

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            try:
                first = self._failures.first()
            except RuntimeError:  # rank 0, or the launcher, has gone and with it the store
                first = {"rank": 0, "error": "it has gone without a word"}
            if first is None or first["rank"] == self._failures.rank:
                continue
            if not self._stopped.wait(_ENDING_S):
                sys.stderr.write(f"fastbudget: {_ended_by(first)}\n")
                sys.stderr.flush()
                os._exit(1)
            return


def _ended_by(first: dict[str, Any]) -> RankFailedError:
    return RankFailedError(f"Rank {first['rank']} failed, so all ranks end: {first['error']}")


def _is_lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another process has gone."""
    if isinstance(error, dist.DistBackendError | dist.DistNetworkError | dist.DistStoreError):
        return True
    lost = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in lost)


def _same_error(error: BaseException, elsewhere: dict[str, Any]) -> bool:
    return "".join(traceback.format_exception_only(error)).strip() == elsewhere["error"]


def shorten_tracebacks() -> None:
    """Have this process print one line, not a traceback, for a failure that another rank shows in full."""
    previous = sys.excepthook
    if getattr(previous, "shows_other_ranks_shortly", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, RankFailedError):
            sys.stderr.write(f"fastbudget: {error}\n")
        elif (first := error.__dict__.get("failed_first_on")) is not None:
            sys.stderr.write(f"fastbudget: {kind.__name__} as on rank {first}.\n")
        else:
            previous(kind, error, trace)

    hook.shows_other_ranks_shortly = True  # type: ignore[attr-defined]
    sys.excepthook = hook
