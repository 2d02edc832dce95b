"""The guard around a training loop: it counts, keeps a reserve, and says when to finish."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ..checkpoint import CheckpointStore
from ..core.budget import Budget
from ..core.clock import Clock, SystemClock
from ..core.errors import BudgetSpent, InvalidInputError
from ..core.units import SECONDS_PER_HOUR
from .finish_reserve import FinishReserve
from .ledger import Ledger, nanosecond_clock
from .ledger_record import read_ledger
from .metric_log import MetricLog
from .rank_agreement import FollowingLedger, RankAgreement, find_ranks, is_sharded
from .shared_budget import SharedBudget
from .spending import spend_summary
from .step_forecast import StepForecast
from .stop_signals import StopSignals

T = TypeVar("T")

CHECKPOINT_DIR = "checkpoints"
STEP_METRICS_FILE = "step_metrics.jsonl"

# The grace before the limit: time to leave an evaluation and close the ledger, and on long runs for an emergency save.
_GRACE_SHARE, _LEAST_GRACE_S, _MOST_GRACE_S = 0.002, 0.1, 10.0
# The system may take the processor away for this long at any time, however short the work.
_JITTER_S = 0.05
_MOST_SHARE_KEPT = 0.05


class BudgetGuard:
    """Keeps a loop inside its budget. The clock starts when the ``with`` block opens.

    The loop ends when one more step, the last save and the last evaluation might not fit: see `reserve_s`. A watchdog
    process bills the run's time and holds the limit, whatever becomes of the loop: ``grace_s`` before it this process
    gets a SIGTERM, at the limit it and its descendants are killed. The SIGTERM only sets `stop_reason`, except during
    `evaluate` and `checkpoint`: these are abandoned, and the block is left, quietly. Spending by earlier sessions in
    the same run directory counts. While the guard is open, SIGINT and SIGTERM ask the loop to stop after the current
    step; a second one has its usual effect.

    In a ``torch.distributed`` run every rank makes the same guard and calls the same methods: rank 0 keeps the ledger
    and decides, and all ranks stop at the same step. Their loaders must have the same length.

    Args:
        budget: What may be spent; the tightest limit rules.
        run_dir: Holds the ledger and ``checkpoints/``; made when missing.
        num_devices: Devices held, busy or not; None: one for each rank.
        started_at: Seconds since the epoch from which time is billed; None: when the block opens.
        store: Where `checkpoint` saves; None: a store in ``run_dir`` that keeps the last two.
        final_evaluations: Evaluations the loop will make after it stops, in units of the measured ones.
        cool_down_share: Share of what training may use, left, at which `should_cool_down` turns true.
        shared: A budget that this run shares with others; both hold.
        on_exhausted: Command that the watchdog runs once the budget is spent, also after a SIGKILL: a list of
            arguments, or a string for the shell. It runs as soon as the guard closes. Its exit status goes into the
            ledger, its output into ``on_exhausted.log``.
        tick_s: Between two heartbeats of the watchdog.
        grace_s: From the SIGTERM to the SIGKILL; None: 0.2% of the budget, between 0.1 and 10 s.
        clock: For tests; without a watchdog.

    Raises:
        InvalidInputError: a value out of range.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        run_dir: str | Path,
        num_devices: int | None = None,
        started_at: float | None = None,
        store: CheckpointStore | None = None,
        final_evaluations: float = 1.0,
        cool_down_share: float = 0.2,
        shared: SharedBudget | None = None,
        on_exhausted: list[str] | str | None = None,
        tick_s: float = 0.25,
        grace_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not 0 <= cool_down_share <= 1:
            raise InvalidInputError(f"cool_down_share must be between 0 and 1, got {cool_down_share}.")
        if grace_s is not None and grace_s < 0:
            raise InvalidInputError(f"grace_s must not be negative, got {grace_s}.")
        self._wall = (clock or SystemClock()).wall
        self._now_ns = nanosecond_clock(clock)
        if started_at is not None and started_at > self._wall():
            raise InvalidInputError(f"started_at must not lie in the future, got {started_at}.")
        self._ranks: RankAgreement | None = find_ranks()
        if num_devices is None:
            num_devices = self._ranks.world_size if self._ranks else 1
        self.budget = budget
        self.limit = budget.in_seconds(num_devices)
        self.run_dir = Path(run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.store = store or CheckpointStore(self.run_dir / CHECKPOINT_DIR)
        self.num_devices = num_devices
        self.stop_reason: str | None = None
        self._started_at, self._shared, self._on_exhausted = started_at, shared, on_exhausted
        self._cool_down_share, self._tick_s, self._clock = cool_down_share, tick_s, clock
        self._grace_s = grace_s
        self._reserve = FinishReserve(final_evaluations)
        self._add_step = self._reserve.steps.add
        self._forecast = StepForecast()
        self._signals = StopSignals(self._on_signal)
        self._ledger: Ledger | None = None
        self._metric_log: MetricLog | None = None
        # The whole budget as wall seconds of these devices; and up to where this session may bill, after earlier ones.
        self._whole_s = self._limit_s = self.limit.seconds
        self._saved_at_s = 0.0
        self._look_again_ns = 0
        self._elsewhere_ns = 0
        self._may_abandon = False
        self._step_began_ns = 0
        self._at_looks: list[Callable[[], None]] = []

    # -- the clock -------------------------------------------------------------------------------------------------

    def __enter__(self) -> BudgetGuard:
        self._ledger = ledger = self._start_billing()
        # What earlier sessions measured: a resumed run must keep its reserve from its first step on.
        self._reserve.learn(ledger.before.measured_s)
        self._saved_at_s = ledger.spent_s()
        if ledger.before.total_billed_s and self.left_s < self.reserve_s:
            warnings.warn(
                f"The budget of {self.run_dir} is spent: earlier sessions used {ledger.before.total_billed_s:.1f} of "
                f"{self._limit_s:.1f} s. Raise the budget, or give a new run_dir for a new run.",
                RuntimeWarning,
                stacklevel=2,
            )
        ledger.set_limit(self._limit_s, terminate=self._signals.install())
        return self

    def _start_billing(self) -> Ledger:
        if self._ranks is None:
            return self._open_ledger_file()
        if self._ranks.rank == 0:
            try:
                opened = self._open_ledger_file()
            except Exception as error:
                self._ranks.from_rank_0(error)
                raise
            self._ranks.from_rank_0((opened.spent_s(), self._limit_s, self._whole_s))
            return opened
        before_s, self._limit_s, self._whole_s = self._ranks.from_rank_0(None)
        return FollowingLedger(
            self.run_dir,
            num_devices=self.num_devices,
            before_s=before_s,
            tick_s=self._tick_s,
            grace_s=self._grace,
            clock=self._clock,
        )

    def _open_ledger_file(self) -> Ledger:
        before_s = 0.0 if self._started_at is None else self._wall() - self._started_at
        ledger = Ledger(
            self.run_dir,
            num_devices=self.num_devices,
            before_s=before_s,
            tick_s=self._tick_s,
            grace_s=self._grace,
            on_exhausted=self._on_exhausted,
            clock=self._clock,
        )
        if self._shared is not None:
            try:
                self._whole_s = self._shared.reserve(self.run_dir, self.limit.seconds, self.num_devices)
            except BaseException:
                ledger.close("error: BudgetTooSmallError")
                raise
        self._limit_s = self._whole_s
        wall_s, device_s = ledger.before.total_billed_s, ledger.before.device_hours * SECONDS_PER_HOUR
        if wall_s:  # earlier sessions may have held another number of devices
            own = self.budget.in_seconds(self.num_devices, used_device_s=device_s, used_s=wall_s)
            self._limit_s = wall_s + min(own.seconds, self._whole_s - device_s / self.num_devices)
        return ledger

    @property
    def _grace(self) -> float:
        if self._grace_s is not None:
            return self._grace_s
        seconds = min(_MOST_GRACE_S, max(_LEAST_GRACE_S, _GRACE_SHARE * self._limit_s))
        return min(seconds, _MOST_SHARE_KEPT * self._limit_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._signals.restore()
        if self.stop_reason is None and kind is not None:
            self.stop_reason = f"error: {kind.__name__}"
        ledger = self._open_ledger()
        try:
            ledger.close(self.stop_reason or "completed")
        finally:
            self._ledger, self._look_again_ns = None, 0
            if self._metric_log is not None:
                self._metric_log.close()
            if self._shared is not None and (self._ranks is None or self._ranks.rank == 0):
                self._shared.settle(self.run_dir)
        return kind is BudgetSpent

    def _on_signal(self, reason: str) -> bool:
        """Note the wish to stop; returns whether it is a user's. The watchdog's ends an evaluation or save at once."""
        if reason == "sigterm" and self._ledger is not None and self._ledger.deadline_is_near:
            self.stop_reason = self.stop_reason or "budget"
            if self._may_abandon:
                self._may_abandon = False
                raise BudgetSpent
            return False
        self.stop_reason = reason
        return True

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
    def spent_device_hours(self) -> float:
        """Billed device-hours, over all sessions of the run."""
        return self._ledger.device_hours() if self._ledger else read_ledger(self.run_dir).device_hours

    @property
    def left_s(self) -> float:
        """Wall seconds left; negative when overspent."""
        return self._limit_s - self.spent_s

    @property
    def fraction_left(self) -> float:
        """Share of the budget left, in [0, 1]."""
        return min(1.0, max(0.0, self.left_s / self._whole_s))

    @property
    def reserve_s(self) -> float:
        """Seconds kept back for one more step, the last save and the last evaluations, and the grace.

        So much that the least is wasted on average: see `least_waste_s`. Work since the last save is at stake.
        """
        return self._reserve.least_waste_s(self.unsaved_s) + self._kept_s

    @property
    def unsaved_s(self) -> float:
        """Billed wall seconds since the last durable checkpoint: what a restart loses."""
        return self.spent_s - self._saved_at_s

    @property
    def _kept_s(self) -> float:
        """The grace, and what the system may take."""
        return self._grace + min(_JITTER_S, _MOST_SHARE_KEPT * self._limit_s)

    @property
    def fraction_used(self) -> float:
        """Share spent of what training may use, which is the budget less the reserve; in [0, 1]."""
        kept = self._reserve.upper_s(1.5) + self._kept_s
        usable = self._whole_s - kept
        return min(1.0, max(0.0, 1 - (self.left_s - kept) / usable)) if usable > 0 else 1.0

    @property
    def should_cool_down(self) -> bool:
        """Whether so little is left, after the reserve, that the learning rate should fall now."""
        return 1 - self.fraction_used <= self._cool_down_share

    @property
    def steps_left(self) -> float | None:
        """Steps that still fit, evaluations and saves between them included; None before a few were taken.

        As of the last look at the clock, a few times a second, and the same on all ranks.
        """
        return self._forecast.left(self._open_ledger().steps)

    @property
    def typical_step_s(self) -> float | None:
        """Median of recent steps; None before the first."""
        return self._reserve.steps.median_s()

    @property
    def evaluation_upper_s(self) -> float:
        """What one evaluation and one save may take; 0 before the first."""
        return self._reserve.upper_s(2.0, evaluations=1.0, step=False)

    def may_evaluate(self, evaluations: float = 1.0, *, then_save: bool = False, keep_reserve: bool = False) -> bool:
        """Whether so many evaluations, and a save after them, fit in what is left, more likely than not.

        Args:
            evaluations: In units of the measured ones.
            then_save: Whether a save follows.
            keep_reserve: Whether the last ones must still fit afterwards: what to ask before one that can be left out.
        """
        needed = self._reserve.upper_s(0.5, evaluations=evaluations, saves=float(then_save), step=False)
        kept = self._reserve.upper_s(1.5) + self._kept_s if keep_reserve else self._grace
        return self.left_s - kept >= needed

    def may_continue(self) -> bool:
        """Whether one more step fits. Sets `stop_reason` when not: ``budget``, ``sigint`` or ``sigterm``."""
        if self._ranks is None and self._now_ns() < self._look_again_ns and self.stop_reason is None:
            return True
        ledger = self._open_ledger()
        if ledger.phase in ("init", "idle"):
            ledger.enter("train")
        return self._may_continue_at(ledger.now_ns())

    def _may_continue_at(self, now_ns: int) -> bool:
        if self._ranks is not None:
            if not self._ranks.is_due():
                return True
        elif now_ns < self._look_again_ns and self.stop_reason is None:
            return True
        return self._look(now_ns)

    def _look(self, now_ns: int) -> bool:
        """Decide, and say when to look again: after a tick, or when the end may have come."""
        ledger = self._open_ledger()
        ledger.tick()
        for function in self._at_looks:
            function()
        left_s, reserve_s = self.left_s, self.reserve_s
        if self.stop_reason is None and left_s < reserve_s and (self._ranks is None or self._ranks.rank == 0):
            self.stop_reason = "budget"
        steps_left = self._forecast.look(now_ns / 1e9, left_s - reserve_s, ledger.steps)
        if self._ranks is not None:
            agreed = self._ranks.agree(self.stop_reason, left_s - reserve_s, self.typical_step_s, steps_left)
            self._forecast.set(self._ranks.steps_left, ledger.steps)
            if agreed is None:  # a signal that came meanwhile waits for the next agreement
                return True
            self.stop_reason = agreed
        surely_s = left_s - self._reserve.most_s() - self._kept_s
        self._look_again_ns = now_ns + int(max(0.0, min(self._tick_s, surely_s)) * 1e9)
        return self.stop_reason is None

    # -- the loop --------------------------------------------------------------------------------------------------

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the loader's batches while one more step fits. Waiting for a batch is part of its step."""
        ledger = self._open_ledger()
        batches = iter(loader)
        ledger.enter("train")
        add_step, now = self._reserve.steps.add, ledger.now_ns
        begun = now()
        try:
            while self._may_continue_at(begun):
                self._elsewhere_ns = 0
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                yield batch
                ended = now()
                add_step((ended - begun - self._elsewhere_ns) / 1e9)
                ledger.count_step()
                begun = ended
        finally:
            self._look_again_ns = 0
            if self._ledger is not None and ledger.phase == "train":
                ledger.enter("idle")

    @contextmanager
    def timed_step(self) -> Iterator[None]:
        """Measure one step of a loop that doesn't use `steps`. Saves and evaluations inside don't count to it."""
        self._open_ledger()
        self.begin_step()
        yield
        self.end_step()

    def begin_step(self) -> None:
        """Begin to measure a step; see `timed_step`, which costs a microsecond more."""
        self._elsewhere_ns = 0
        self._step_began_ns = self._now_ns()

    def end_step(self) -> float:
        """Measure and count the step begun; return its seconds."""
        seconds = (self._now_ns() - self._step_began_ns - self._elsewhere_ns) / 1e9
        self._add_step(seconds)
        self._open_ledger().count_step()
        return seconds

    def at_looks(self, function: Callable[[], None]) -> None:
        """Have a function called between steps a few times a second, whenever the guard looks at the clock."""
        self._at_looks.append(function)

    def log(self, **values: Any) -> None:
        """Write numbers measured in a step to ``step_metrics.jsonl``, within a tick: a list append now."""
        if self._metric_log is None:
            self._metric_log = MetricLog(self.run_dir / STEP_METRICS_FILE)
            self.at_looks(self._metric_log.flush)
        self._metric_log.add((self._open_ledger().steps, values))

    @contextmanager
    def phase(self, name: str, *, learn: bool = True, abandon: bool = True) -> Iterator[None]:
        """Bill the block as ``evaluate`` or ``checkpoint``, for a loop that does these by itself.

        Args:
            name: The phase.
            learn: Whether its duration says how long the next one takes.
            abandon: Whether it may be left in the middle when the budget ends.
        """
        ledger = self._open_ledger()
        before = ledger.phase
        ledger.enter(name)
        start = ledger.now_ns()
        # Other ranks wait for rank 0, and end with it.
        self._may_abandon = abandon and (self._ranks is None or self._ranks.rank == 0)
        try:
            yield
            self._may_abandon = False
            if learn:
                seconds = (ledger.now_ns() - start) / 1e9
                self._reserve.add(name, seconds)
                ledger.measured(name, seconds)
        finally:
            self._may_abandon = False
            elsewhere_ns = ledger.now_ns() - start
            self._elsewhere_ns += elsewhere_ns
            self._forecast.add_aside(elsewhere_ns / 1e9)
            self._look_again_ns = 0
            ledger.enter(before)

    def evaluate(self, function: Callable[[], T], *, typical: bool = True, abandon: bool = True) -> T:
        """Call ``function`` and bill its time as evaluation.

        Args:
            function: Evaluates.
            typical: Whether its duration says how long the others take; not so for a final one on more data.
            abandon: Whether it may be left in the middle when the budget ends; not so where ranks work in step.

        Raises:
            BudgetSpent: the budget ended meanwhile; the guard's block ends with it, so it needs no handling.
        """
        with self.phase("evaluate", learn=typical, abandon=abandon):
            return function()

    def checkpoint(
        self,
        state: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
        *,
        step: int | None = None,
        store: CheckpointStore | None = None,
    ) -> Path:
        """Save durably and bill the time as checkpointing.

        In a distributed run all ranks call it: sharded states (DTensors) are saved by all together, others by rank 0.

        Args:
            state: Nested mapping of tensors and plain data; see `CheckpointStore.save`.
            metrics: Measured on this state.
            step: Defaults to one after the newest.
            store: Where to; None: the guard's.

        Raises:
            BudgetSpent: as in `evaluate`; what was saved before is intact.
        """
        ranks, store = self._ranks, store or self.store
        sharded = ranks is not None and is_sharded(state)  # then all write together or not at all
        with self.phase("checkpoint", abandon=not sharded):
            if step is None:
                step = _next_step(store) if ranks is None or ranks.rank == 0 else 0
                step = step if ranks is None else int(ranks.from_rank_0(step))
            if ranks is None or sharded:
                path = store.save(step, state, metrics)
            else:
                path = ranks.done_by_rank_0(lambda: store.save(step, state, metrics))
        self.saved()
        return path

    def expect(self, name: str, seconds: float) -> None:
        """Tell how long the first ``evaluate`` or ``checkpoint`` may take, to keep it back before any is seen."""
        self._reserve.add(name, seconds)

    @property
    def is_over(self) -> bool:
        """Whether the watchdog announced the limit: what runs now will not end in time."""
        return self._ledger is not None and self._ledger.deadline_is_near

    def saved(self) -> None:
        """Note that all work so far is durable, for a loop that saves by itself: a restart no longer loses it."""
        self._open_ledger().saved()
        self._saved_at_s = self.spent_s

    def note(self, **note: Any) -> None:
        """Write something that happened into the ledger, beside the spending; plain data by name."""
        self._open_ledger().note(note)

    def spend(self) -> dict[str, Any]:
        """Return what the run has spent: seconds by phase, device-hours, money where a price is known."""
        record = read_ledger(self.run_dir) if self._ledger is None else self._ledger.record()
        return spend_summary(record, self.budget, self.num_devices)


def _next_step(store: CheckpointStore) -> int:
    existing = store.paths()
    return int(existing[-1].name.split("_")[1]) + 1 if existing else 0
