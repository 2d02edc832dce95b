"""The guard around a training loop: it counts, keeps a reserve, and says when to finish."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ..checkpoint import CheckpointStore
from ..core.budget import Budget
from ..core.clock import Clock, SystemClock
from ..core.errors import InvalidInputError
from ..core.units import SECONDS_PER_HOUR
from .ledger import Ledger, LedgerRecord, read_ledger
from .reserves import DurationEstimate

T = TypeVar("T")

CHECKPOINT_DIR = "checkpoints"
_SIGNALS = {signal.SIGINT: "sigint", signal.SIGTERM: "sigterm"}


class BudgetGuard:
    """Keeps a loop inside its budget. The clock starts when the ``with`` block opens.

    A last evaluation and a last save are always kept in reserve, as long as the ones measured so far were, with a
    margin for their spread. Spending by earlier sessions in the same run directory counts. While the guard is open,
    SIGINT and SIGTERM ask the loop to stop after the current step; a second one has its usual effect.

    Args:
        budget: What may be spent; the tightest limit rules.
        run_dir: Holds the ledger and ``checkpoints/``; made when missing.
        num_devices: Devices held, busy or not.
        started_at: Seconds since the epoch from which time is billed; None: when the block opens.
        store: Where `checkpoint` saves; None: a store in ``run_dir`` that keeps the last two.
        final_evaluations: Evaluations the loop will make after it stops, in units of the measured ones.
        cool_down_share: Share of the budget left at which `should_cool_down` turns true.
        clock: For tests.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        run_dir: str | Path,
        num_devices: int = 1,
        started_at: float | None = None,
        store: CheckpointStore | None = None,
        final_evaluations: float = 1.0,
        cool_down_share: float = 0.2,
        clock: Clock | None = None,
    ) -> None:
        if not 0 <= cool_down_share <= 1:
            raise InvalidInputError(f"cool_down_share must be between 0 and 1, got {cool_down_share}.")
        self._clock = clock or SystemClock()
        if started_at is not None and started_at > self._clock.wall():
            raise InvalidInputError(f"started_at must not lie in the future, got {started_at}.")
        self.budget = budget
        self.run_dir = Path(run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.store = store or CheckpointStore(self.run_dir / CHECKPOINT_DIR)
        self.limit = budget.in_seconds(num_devices)
        self.num_devices = num_devices
        self.stop_reason: str | None = None
        self._started_at = started_at
        self._final_evaluations = final_evaluations
        self._cool_down_share = cool_down_share
        self._steps, self._saves, self._evaluations = (
            DurationEstimate(),
            DurationEstimate(),
            DurationEstimate(),
        )
        self._ledger: Ledger | None = None
        self._old_handlers: dict[signal.Signals, Any] = {}

    # -- the clock -------------------------------------------------------------------------------------------------

    def __enter__(self) -> BudgetGuard:
        self._ledger = Ledger(self.run_dir, num_devices=self.num_devices, clock=self._clock)
        if self._started_at is not None:
            self._ledger.add("before", self._clock.wall() - self._started_at)
        # What earlier sessions measured: a resumed run must keep its reserve from its first step on.
        for phase, durations in (("evaluate", self._evaluations), ("checkpoint", self._saves)):
            if not len(durations):
                for seconds in self._ledger.before.measured_s.get(phase, ()):
                    durations.add(seconds)
        if self._ledger.before.total_billed_s and self.left_s < self.reserve_s:
            warnings.warn(
                f"The budget of {self.run_dir} is spent: earlier sessions used "
                f"{self._ledger.before.total_billed_s:.1f} of {self.limit.seconds:.1f} s. Raise the budget, or give a "
                "new run_dir for a new run.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._ledger.enter("train")
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._old_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._old_handlers.clear()
        if kind is not None and self.stop_reason is None:
            self.stop_reason = f"error: {kind.__name__}"
        self._open_ledger().close(self.stop_reason or "completed")
        self._ledger = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        caught = signal.Signals(number)
        self.stop_reason = _SIGNALS[caught]
        # The second of its kind must not be swallowed: the loop may be stuck.
        signal.signal(number, self._old_handlers.get(caught, signal.SIG_DFL))

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            raise InvalidInputError("The guard is closed: use it inside its `with` block.")
        return self._ledger

    # -- what is left ----------------------------------------------------------------------------------------------

    @property
    def spent_s(self) -> float:
        """Billed wall seconds, over all sessions of the run."""
        return self._ledger.spent_s() if self._ledger else read_ledger(self.run_dir).total_billed_s

    @property
    def left_s(self) -> float:
        """Wall seconds left; negative when overspent."""
        return self.limit.seconds - self.spent_s

    @property
    def fraction_left(self) -> float:
        """Share of the budget left, in [0, 1]."""
        return min(1.0, max(0.0, self.left_s / self.limit.seconds))

    @property
    def reserve_s(self) -> float:
        """Seconds kept back for one more step, the last save and the last evaluations."""
        return self._steps.next_s() + self._saves.upper_s() + self._final_evaluations * self._evaluations.upper_s()

    @property
    def fraction_used(self) -> float:
        """Share spent of what training may use, which is the budget less the reserve; in [0, 1]."""
        usable = self.limit.seconds - self.reserve_s
        return min(1.0, max(0.0, self.spent_s / usable)) if usable > 0 else 1.0

    @property
    def should_cool_down(self) -> bool:
        """Whether so little is left that the learning rate should fall now."""
        return self.fraction_left <= self._cool_down_share

    @property
    def typical_step_s(self) -> float | None:
        """Median of recent steps; None before the first."""
        return self._steps.median_s()

    @property
    def evaluation_upper_s(self) -> float:
        """What one evaluation and one save may take; 0 before the first."""
        return self._evaluations.upper_s() + self._saves.upper_s()

    def may_evaluate(self, evaluations: float = 1.0, *, then_save: bool = False) -> bool:
        """Whether so many evaluations, and a save after them, fit in what is left."""
        save = self._saves.upper_s() if then_save else 0.0
        return self.left_s >= evaluations * self._evaluations.upper_s() + save

    def may_continue(self) -> bool:
        """Whether one more step fits. Sets `stop_reason` when not: ``budget``, ``sigint`` or ``sigterm``."""
        self._open_ledger().tick()
        if self.stop_reason is None and self.left_s < self.reserve_s:
            self.stop_reason = "budget"
        return self.stop_reason is None

    # -- the loop --------------------------------------------------------------------------------------------------

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the loader's batches while one more step fits. Waiting for a batch is part of its step."""
        batches = iter(loader)
        while self.may_continue():
            begun = self._step_clock()
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch
            self._steps.add(self._step_clock() - begun)

    @contextmanager
    def timed_step(self) -> Iterator[None]:
        """Measure one step of a loop that doesn't use `steps`. Saves and evaluations inside don't count to it."""
        begun = self._step_clock()
        yield
        self._steps.add(self._step_clock() - begun)

    _elsewhere_s = 0.0

    def _step_clock(self) -> float:
        """Seconds that stand still during saves and evaluations."""
        return self._clock.monotonic() - self._elsewhere_s

    @contextmanager
    def _phase(self, name: str, durations: DurationEstimate | None) -> Iterator[None]:
        ledger = self._open_ledger()
        ledger.enter(name)
        start = self._clock.monotonic()
        try:
            yield
            if durations is not None:
                seconds = self._clock.monotonic() - start
                durations.add(seconds)
                ledger.measured(name, seconds)
        finally:
            self._elsewhere_s += self._clock.monotonic() - start
            ledger.enter("train")

    def evaluate(self, function: Callable[[], T], *, typical: bool = True) -> T:
        """Call ``function`` and bill its time as evaluation.

        Args:
            function: Evaluates.
            typical: Whether its duration says how long the others take; not so for a final one on more data.
        """
        with self._phase("evaluate", self._evaluations if typical else None):
            return function()

    def checkpoint(
        self, state: Mapping[str, Any], metrics: Mapping[str, float] | None = None, *, step: int | None = None
    ) -> Path:
        """Save durably and bill the time as checkpointing. ``step`` defaults to one after the newest."""
        if step is None:
            existing = self.store.paths()
            step = int(existing[-1].name.split("_")[1]) + 1 if existing else 0
        with self._phase("checkpoint", self._saves):
            return self.store.save(step, state, metrics)

    def spend(self) -> dict[str, Any]:
        """Return what the run has spent: seconds by phase, device-hours, money where a price is known."""
        if self._ledger is not None:
            self._ledger.enter("train")  # bills the phase under way, so that the file is up to date
        return spend_summary(read_ledger(self.run_dir), self.budget, self.num_devices)


def spend_summary(record: LedgerRecord, budget: Budget, num_devices: int) -> dict[str, Any]:
    """Return a ledger as shown to users, beside the budget's limit in device-hours."""
    limit = budget.in_seconds(num_devices)
    return {
        "device_hours": record.device_hours,
        "budget_device_hours": limit.seconds * num_devices / SECONDS_PER_HOUR,
        "ruling_limit": limit.ruling_limit,
        "usd": budget.usd_for(record.device_hours),
        "seconds_by_phase": dict(record.billed_s),
        "unbilled_seconds_by_phase": dict(record.unbilled_s),
        "sessions": record.sessions,
    }
