from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbudget as fb
from fastbudget.budget import BudgetGuard, read_ledger

SECOND = 1 / 3600


def guard_of(run_dir: Path, clock: Any, seconds: float = 100, **options: Any) -> BudgetGuard:
    return BudgetGuard(fb.Budget(wall_hours=seconds * SECOND), run_dir=run_dir, clock=clock, **options)


def spending(clock: Any, seconds: float, result: Any = None) -> Callable[[], Any]:
    def work() -> Any:
        clock.advance(seconds)
        return result

    return work


class SlowStore:
    """Stands in for a store: saving takes time on the clock and nothing on disk."""

    def __init__(self, clock: Any, seconds: float) -> None:
        self.clock, self.seconds, self.saved = clock, seconds, []

    def paths(self) -> list[Path]:
        return []

    def save(self, step: int, state: Any, metrics: Any) -> Path:
        self.clock.advance(self.seconds)
        self.saved.append((step, metrics))
        return Path("saved")


def test_a_loop_ends_with_its_data_or_its_budget(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path / "a", clock, 100) as guard:
        for _ in guard.steps(range(5)):
            clock.advance(1)
        assert guard.stop_reason is None and guard.spent_s == pytest.approx(5)
    assert read_ledger(tmp_path / "a").last_reason == "completed"
    with guard_of(tmp_path / "b", clock, 100) as guard:
        taken = 0
        for _ in guard.steps(iter(range(1000))):
            clock.advance(1)
            taken += 1
        assert guard.stop_reason == "budget"
        assert 95 <= taken <= 100 and guard.left_s >= 0
    record = read_ledger(tmp_path / "b")
    assert record.last_reason == "budget" and record.billed_s == pytest.approx({"train": taken})
    assert record.session_records[0].steps == taken


def test_a_slow_loader_is_part_of_its_step(tmp_path: Path, clock: Any) -> None:
    def slow() -> Iterator[int]:
        for batch in range(1000):
            clock.advance(7)
            yield batch

    with guard_of(tmp_path, clock, 100) as guard:
        for _ in guard.steps(slow()):
            clock.advance(0.1)
        assert guard.stop_reason == "budget" and guard.left_s >= 0
        assert guard.typical_step_s == pytest.approx(7.1)


def test_an_empty_loader_takes_no_step(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock) as guard:
        assert list(guard.steps([])) == [] and guard.typical_step_s is None and guard.stop_reason is None


def test_saves_and_evaluations_are_billed_apart_and_reserved(tmp_path: Path, clock: Any) -> None:
    store = SlowStore(clock, 2)
    with guard_of(tmp_path, clock, 100, store=store) as guard:
        assert guard.reserve_s < 0.3 and guard.evaluation_upper_s == 0, "more than the grace was kept for nothing"
        for index, _ in enumerate(guard.steps(range(1000))):
            clock.advance(1)
            if index == 3:
                assert guard.evaluate(spending(clock, 5, {"accuracy": 0.5})) == {"accuracy": 0.5}
                guard.checkpoint({}, {"accuracy": 0.5}, step=index)
                assert guard.reserve_s > 5 + 2 and guard.evaluation_upper_s > 7
        assert guard.typical_step_s == pytest.approx(1), "the evaluation was counted to a step"
        left = guard.left_s
        guard.evaluate(spending(clock, 5))
        guard.checkpoint({}, step=999)
        assert left >= 7 and guard.left_s >= 0
        billed = guard.spend()
    assert billed["seconds_by_phase"]["evaluate"] == pytest.approx(10)
    assert billed["seconds_by_phase"]["checkpoint"] == pytest.approx(4)
    assert sum(billed["seconds_by_phase"].values()) == pytest.approx(clock.now)
    assert store.saved == [(3, {"accuracy": 0.5}), (999, None)]


def test_several_final_evaluations_are_reserved(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock, 100, final_evaluations=3.0) as guard:
        guard.evaluate(spending(clock, 4))
        assert 3 * 4 < guard.reserve_s < 3 * 4 * 2
        assert 4 / 88 < guard.fraction_used < 4 / 76


def test_an_evaluation_that_can_be_left_out_must_leave_room_for_the_last(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock, 100) as guard:
        guard.evaluate(spending(clock, 10))
        clock.advance(75)  # 15 s left
        assert guard.may_evaluate() and not guard.may_evaluate(keep_reserve=True) and not guard.may_evaluate(2)


def test_a_final_evaluation_on_more_data_says_nothing_about_the_others(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock, 1000) as guard:
        guard.evaluate(spending(clock, 1))
        reserve = guard.evaluation_upper_s
        assert guard.evaluate(spending(clock, 50, "result"), typical=False) == "result"
        assert guard.evaluation_upper_s == reserve
    with guard_of(tmp_path, clock, 1000) as guard:
        assert guard.evaluation_upper_s == pytest.approx(reserve) and guard.spent_s == pytest.approx(51)


def test_a_failed_evaluation_is_billed_and_teaches_nothing(tmp_path: Path, clock: Any) -> None:
    def fails() -> None:
        clock.advance(3)
        raise ValueError("no")

    with guard_of(tmp_path, clock) as guard:
        with pytest.raises(ValueError, match="no"):
            guard.evaluate(fails)
        assert guard.evaluation_upper_s == 0
        clock.advance(1)
    assert read_ledger(tmp_path).billed_s == pytest.approx({"evaluate": 3, "init": 1})


def test_a_resumed_run_knows_its_reserve_from_the_start(tmp_path: Path, clock: Any) -> None:
    store = SlowStore(clock, 2)
    with guard_of(tmp_path, clock, 100, store=store) as guard:
        guard.evaluate(spending(clock, 5))
        guard.checkpoint({}, step=1)
        reserve = guard.reserve_s
    clock.advance(1000)  # nobody ran: nothing is billed
    with guard_of(tmp_path, clock, 100, store=store) as guard:
        assert guard.spent_s == pytest.approx(7) and guard.reserve_s == pytest.approx(reserve)
        for _ in guard.steps(range(1000)):
            clock.advance(1)
        guard.evaluate(spending(clock, 5))
        guard.checkpoint({}, step=2)
        assert guard.left_s >= 0, "the second session overspent for want of a reserve"


def test_fractions_and_cooling_down(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock, 100, cool_down_share=0.25) as guard:
        assert guard.fraction_left == 1 and not guard.should_cool_down and guard.fraction_used == 0
        clock.advance(74)
        assert guard.fraction_left == pytest.approx(0.26) and not guard.should_cool_down
        clock.advance(2)
        assert guard.should_cool_down and guard.fraction_used == pytest.approx(0.76, rel=0.01)
        clock.advance(100)
        assert guard.fraction_left == 0 and guard.fraction_used == 1 and guard.left_s == pytest.approx(-76)
        assert not guard.may_continue() and guard.stop_reason == "budget"


def test_time_before_the_process_is_billed(tmp_path: Path, clock: Any) -> None:
    clock.advance(500)
    started = clock.wall() - 60
    with guard_of(tmp_path, clock, 100, started_at=started) as guard:
        assert guard.spent_s == pytest.approx(60)
        for _ in guard.steps(range(1000)):
            clock.advance(1)
        assert guard.spent_s <= 100
    assert read_ledger(tmp_path).billed_s["init"] == pytest.approx(60)
    with pytest.raises(fb.InvalidInputError, match="future"):
        guard_of(tmp_path / "b", clock, started_at=clock.wall() + 5)


def test_money_and_devices(tmp_path: Path, clock: Any) -> None:
    budget = fb.Budget(usd=1.0, usd_per_device_hour=9.0)  # 400 device-seconds
    with BudgetGuard(budget, run_dir=tmp_path, num_devices=4, clock=clock) as guard:
        for _ in guard.steps(range(10_000)):
            clock.advance(0.5)
        spend = guard.spend()
    assert guard.stop_reason == "budget" and spend["ruling_limit"] == "usd"
    assert spend["device_hours"] == pytest.approx(4 * clock.now / 3600)
    assert spend["usd"] == pytest.approx(9 * spend["device_hours"]) and 0.95 <= spend["usd"] <= 1.0
    assert spend["budget_device_hours"] == pytest.approx(400 / 3600) and spend["sessions"] == 1
    plain = fb.Budget(wall_hours=1)
    with BudgetGuard(plain, run_dir=tmp_path / "b", clock=clock) as guard:
        assert guard.spend()["usd"] is None


@pytest.mark.parametrize("limit", ["gpu_hours", "wall_hours", "usd"])
def test_a_run_that_goes_on_with_more_devices(tmp_path: Path, clock: Any, limit: str) -> None:
    rates = {"usd_per_device_hour": 1.0} if limit == "usd" else {}
    budget = fb.Budget(**{limit: 400 * SECOND, **rates})
    with BudgetGuard(budget, run_dir=tmp_path, num_devices=1, clock=clock) as guard:
        clock.advance(200)
        assert guard.fraction_left == pytest.approx(0.5)
    with BudgetGuard(budget, run_dir=tmp_path, num_devices=4, clock=clock) as guard:
        left_s = 200 if limit == "wall_hours" else 50
        assert guard.left_s == pytest.approx(left_s) and guard.fraction_left == pytest.approx(0.5)
        assert guard.fraction_used == pytest.approx(0.5, abs=0.01)
        for _ in guard.steps(range(10_000)):
            clock.advance(0.1)
        assert guard.stop_reason == "budget" and 0 <= guard.left_s < 1.5
        spend = guard.spend()
    used_h = spend["usd" if limit == "usd" else "device_hours"]
    assert used_h == pytest.approx((200 + 4 * left_s) * SECOND, rel=0.02)


def test_notes_stand_in_the_ledger(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock) as guard:
        guard.note(event="stage", name="long", reason="targets")
    record = read_ledger(tmp_path)
    assert record.damaged_lines == 0
    (note,) = record.session_records[0].notes
    assert note.pop("at") and note == {"event": "stage", "name": "long", "reason": "targets"}


def test_a_guard_is_used_inside_its_block(tmp_path: Path, clock: Any) -> None:
    guard = guard_of(tmp_path, clock)
    for use in (
        guard.may_continue,
        lambda: next(guard.steps([1])),
        lambda: guard.evaluate(int),
        lambda: guard.checkpoint({}),
    ):
        with pytest.raises(fb.InvalidInputError, match="with"):
            use()
    with pytest.raises(fb.InvalidInputError, match="cool_down_share"):
        guard_of(tmp_path, clock, cool_down_share=20)


def test_an_error_closes_the_ledger_with_its_name(tmp_path: Path, clock: Any) -> None:
    with pytest.raises(ZeroDivisionError), guard_of(tmp_path, clock):
        clock.advance(3)
        1 / 0  # noqa: B018
    record = read_ledger(tmp_path)
    assert record.closed and record.last_reason == "error: ZeroDivisionError"
    assert record.total_billed_s == pytest.approx(3)


def test_steps_of_saved_checkpoints_follow_each_other(tmp_path: Path) -> None:
    with BudgetGuard(fb.Budget(wall_hours=1), run_dir=tmp_path) as guard:
        names = [guard.checkpoint({"x": torch.zeros(1)}).name for _ in range(3)]
    assert names == [f"step_{step:012d}" for step in range(3)]
    with BudgetGuard(fb.Budget(wall_hours=1), run_dir=tmp_path) as guard:
        assert guard.checkpoint({"x": torch.zeros(1)}).name.endswith("3")


# -- signals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "sigint"), (signal.SIGTERM, "sigterm")])
def test_a_signal_ends_the_loop_after_the_step(tmp_path: Path, clock: Any, number: int, reason: str) -> None:
    before = signal.getsignal(number)
    finished = []
    with guard_of(tmp_path, clock) as guard:
        for step in guard.steps(range(10)):
            if step == 3:
                os.kill(os.getpid(), number)
            clock.advance(1)
            finished.append(step)
        assert guard.stop_reason == reason
        guard.evaluate(spending(clock, 1))  # still allowed: the loop winds up
    assert finished == [0, 1, 2, 3]
    assert signal.getsignal(number) is before
    assert read_ledger(tmp_path).last_reason == reason


def test_a_second_sigint_interrupts(tmp_path: Path, clock: Any) -> None:
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), guard_of(tmp_path, clock) as guard:
            os.kill(os.getpid(), signal.SIGINT)
            clock.advance(1)
            assert guard.stop_reason == "sigint"
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the second SIGINT was swallowed")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, old)
    record = read_ledger(tmp_path)
    assert record.closed and record.last_reason == "sigint" and record.total_billed_s == pytest.approx(1)


def test_a_guard_works_in_a_thread_without_signals(tmp_path: Path, clock: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    taken: list[int] = []

    def work() -> None:
        with guard_of(tmp_path, clock) as guard:
            taken.extend(guard.steps(range(3)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert taken == [0, 1, 2] and signal.getsignal(signal.SIGINT) is before


def test_a_directory_whose_budget_is_spent_is_called_that(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock, 10) as guard:
        clock.advance(10.5)
        guard.evaluate(lambda: None)
    spent = pytest.warns(RuntimeWarning, match=r"is spent: earlier sessions used 10.5 of 10.0 s.*new run_dir")
    with spent, guard_of(tmp_path, clock, 10) as again:
        assert not again.may_continue() and again.stop_reason == "budget"


def test_phases_follow_what_the_loop_does(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock) as guard:
        clock.advance(1)
        for _ in guard.steps(range(3)):
            clock.advance(2)
            guard.evaluate(spending(clock, 0.5))
        clock.advance(4)
        for _ in guard.steps(range(9)):
            clock.advance(3)
            break
    expected = {"init": 1, "train": 9, "evaluate": 1.5, "idle": 4}
    assert read_ledger(tmp_path).billed_s == pytest.approx(expected)


def test_the_loops_own_saves_count_as_durable(tmp_path: Path, clock: Any) -> None:
    with pytest.raises(ValueError), guard_of(tmp_path, clock) as guard:
        for step in guard.steps(range(10)):
            clock.advance(1)
            if step == 3:
                guard.saved()
            if step == 5:
                raise ValueError
    with guard_of(tmp_path, clock):
        pass
    assert read_ledger(tmp_path).billed_s == pytest.approx({"train": 4, "restart_loss": 2})


def test_metrics_of_steps_are_written_within_a_tick(tmp_path: Path, clock: Any) -> None:
    path = tmp_path / "step_metrics.jsonl"
    with guard_of(tmp_path, clock) as guard:
        for step in guard.steps(range(4)):
            clock.advance(1)
            guard.log(loss=torch.tensor(step / 2), rate=float("nan"))
        assert path.read_text().splitlines()[0] == '{"step": 0, "loss": 0.0, "rate": null}'
    assert len(path.read_text().splitlines()) == 4


def test_a_budget_of_energy(tmp_path: Path, clock: Any) -> None:
    budget = fb.Budget(kwh=0.01, watts_per_device=300)  # 36,000 J: 120 device-seconds
    with BudgetGuard(budget, run_dir=tmp_path, num_devices=2, clock=clock) as guard:
        for _ in guard.steps(iter(int, 1)):
            clock.advance(0.5)
        spend = guard.spend()
    assert spend["ruling_limit"] == "kwh" and 0.0095 <= spend["kwh"] <= 0.01 and 57 <= clock.now <= 60
