"""All ranks of a distributed run stop at the same step: rank 0 decides, in one small collective every so many steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core.clock import Clock
from ..core.errors import BudgetSpent, FastbudgetError, RunDirectoryError
from .ledger import Ledger, nanosecond_clock
from .ledger_record import LedgerRecord, read_ledger
from .watchdog.shared_state import OPENED_NS, SharedState

# Reasons to stop, in the order in which they prevail.
_REASONS = (None, "budget", "sigint", "sigterm")
# Steps between two agreements take at most this share of what is left, and no longer than a launcher waits for ranks
# that it told to stop.
_SHARE, _MOST_S = 0.01, 1.0
_MOST_STEPS = 10_000
# The number of steps left travels as an integer.
_PARTS_OF_A_STEP, _MOST_STEPS_LEFT = 1000, 2**62


def find_ranks() -> RankAgreement | None:
    """Return the agreement of a distributed run under way, None in a run of one process. Never imports torch."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return RankAgreement(distributed) if distributed.get_world_size() > 1 else None


def is_sharded(state: Any) -> bool:
    """Whether a state holds tensors that are spread over the ranks."""
    if isinstance(state, Mapping):
        return any(map(is_sharded, state.values()))
    if isinstance(state, list | tuple):
        return any(map(is_sharded, state))
    return type(state).__name__ == "DTensor"


class RankAgreement:
    """Made by all ranks at once.

    A rank that dies makes the next agreement fail on the others, with gloo at once, at the latest after the process
    group's timeout.
    """

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.world_size: int = distributed.get_world_size()
        # On the CPU, so that no agreement waits for a GPU's queue.
        self._group = None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")
        self.steps_left: float | None = None  # rank 0's, as of the last agreement
        self._asked = 0
        self._next = 1

    def is_due(self) -> bool:
        """Count a step; returns whether the ranks must agree before it."""
        self._asked += 1
        return self._asked >= self._next

    def agree(
        self, reason: str | None, seconds_for_steps: float, step_s: float | None, steps_left: float | None = None
    ) -> str | None:
        """Return why all ranks stop before this step, None if they go on.

        Args:
            reason: This rank's: a signal it caught, on rank 0 the budget too.
            seconds_for_steps: What is left for steps; rank 0's counts.
            step_s: How long a step takes; None: unknown.
            steps_left: Steps that still fit; rank 0's becomes everybody's.
        """
        import torch

        seconds = min(_MOST_S, _SHARE * seconds_for_steps)
        steps = max(1, min(_MOST_STEPS, int(seconds / step_s))) if step_s else 1
        left = -1 if steps_left is None else min(_MOST_STEPS_LEFT, round(steps_left * _PARTS_OF_A_STEP))
        said = torch.tensor([_REASONS.index(reason), *((steps, left) if self.rank == 0 else (0, -1))])
        self._distributed.all_reduce(said, self._distributed.ReduceOp.MAX, group=self._group)
        self._next = self._asked + int(said[1])
        self.steps_left = int(said[2]) / _PARTS_OF_A_STEP if said[2] >= 0 else None
        return _REASONS[int(said[0])]

    def done_by_rank_0(self, function: Callable[[], Any]) -> Any:
        """Return on every rank what rank 0's call returns; an error, or the budget's end, is raised on all."""
        if self.rank == 0:
            try:
                result = function()
            except (Exception, BudgetSpent) as error:
                self._broadcast(error)
                raise
            self._broadcast(result)
            return result
        found = self._broadcast(None)
        if isinstance(found, BaseException):
            raise found
        return found

    def _broadcast(self, value: Any) -> Any:
        values = [value]
        self._distributed.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def from_rank_0(self, value: Any) -> Any:
        """Return rank 0's value on every rank; an error of rank 0 is raised on all."""
        found = self._broadcast(value)
        if isinstance(found, FastbudgetError) and self.rank != 0:
            raise RunDirectoryError(f"Rank 0 could not open the budget: {found}")
        return found


class FollowingLedger(Ledger):
    """Another rank's view of rank 0's ledger: the same clock and the same deadline by a watchdog of its own, no file.

    Args:
        run_dir: The run's.
        num_devices: Devices the run holds.
        before_s: Billed when rank 0's ledger opened.
        tick_s: As rank 0's.
        grace_s: As rank 0's.
        clock: For tests.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        num_devices: int,
        before_s: float,
        tick_s: float,
        grace_s: float,
        clock: Clock | None = None,
    ) -> None:
        self.num_devices, self.tick_s, self.grace_s = num_devices, tick_s, grace_s
        self.run_dir, self._on_exhausted, self._clock = run_dir, None, clock
        self._now_ns = nanosecond_clock(clock)
        self.before = LedgerRecord()
        self.session = 0
        self._before_s, self._before_device_hours = before_s, before_s * num_devices / 3600
        self._watchdog = None
        self._ledger_fd = self._heartbeat_fd = -1
        self._state = SharedState()
        self._opened_ns = self._state.slots[OPENED_NS] = self.now_ns()
        if clock is None:
            self._start_watchdog()

    def _write(self, event: str, **fields: Any) -> None:
        if event == "close" and self._watchdog is not None:  # rank 0 writes the rest
            super()._write(event, **fields)

    def _reopen_files(self) -> None:
        pass

    def record(self) -> LedgerRecord:
        """Return rank 0's ledger as of its last heartbeat; empty where its files are not to be seen."""
        return read_ledger(self.run_dir)
