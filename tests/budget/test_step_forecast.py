"""How many steps still fit: it follows the speed of the steps, and counts evaluations between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fastbudget as fb
from fastbudget.budget import BudgetGuard

SECOND = 1 / 3600


def guard_of(run_dir: Path, clock: Any, seconds: float, **options: Any) -> BudgetGuard:
    return BudgetGuard(fb.Budget(wall_hours=seconds * SECOND), run_dir=run_dir, clock=clock, **options)


def forecasts(guard: BudgetGuard, clock: Any, step_s: Any, aside: Any = None) -> list[float | None]:
    """What was forecast before each step of a whole run."""
    said = []
    for index, _ in enumerate(guard.steps(range(100_000))):
        said.append(guard.steps_left)
        clock.advance(step_s(index))
        if aside is not None:
            aside(index)
    return said


def errors(said: list[float | None]) -> list[float]:
    """Of forecasts, as a share of the steps that were really left; the last steps are few."""
    taken = len(said)
    return [abs(left / (taken - step) - 1) for step, left in enumerate(said) if left is not None and taken - step > 20]


def test_a_steady_run(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock, 1000) as guard:
        said = forecasts(guard, clock, lambda _: 1.0)
    assert len(said) > 980 and said[:5] == [None] * 5 and None not in said[5:]
    assert max(errors(said)) < 0.05 and said[-1] < 3


def test_a_first_step_that_compiles_says_nothing(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock, 1000) as guard:
        said = forecasts(guard, clock, lambda step: 100.0 if step == 0 else 1.0)
    assert max(errors(said)) < 0.05


def test_steps_that_become_slower_and_faster(tmp_path: Path, clock: Any) -> None:
    for name, late_s in (("slower", 4.0), ("faster", 0.25)):
        with guard_of(tmp_path / name, clock, 4000) as guard:
            said = forecasts(guard, clock, lambda step, late_s=late_s: 1.0 if step < 2000 else late_s)
        assert max(errors(said)[2300:]) < 0.1


def test_evaluations_between_steps_count(tmp_path: Path, clock: Any) -> None:
    def evaluating(guard: BudgetGuard) -> Any:
        return lambda step: guard.evaluate(lambda: clock.advance(10)) if step % 30 == 29 else None

    with guard_of(tmp_path, clock, 4000) as guard:
        guard.evaluate(lambda: clock.advance(10))  # before the first step: not a share of the steps' time
        said = forecasts(guard, clock, lambda _: 1.0, evaluating(guard))
    assert max(errors(said)[40:-100]) < 0.15


def test_it_is_unknown_before_the_first_step_and_a_guard_must_be_open(tmp_path: Path, clock: Any) -> None:
    guard = guard_of(tmp_path, clock, 100)
    with guard:
        assert guard.steps_left is None
    with pytest.raises(fb.InvalidInputError, match="closed"):
        _ = guard.steps_left


def test_cooling_down_leaves_the_reserve_out(tmp_path: Path, clock: Any) -> None:
    with guard_of(tmp_path, clock, 100, cool_down_share=0.2) as guard:
        guard.expect("evaluate", 20)
        clock.advance(70)  # 30 s left, of which 20 and more are kept back
        assert guard.fraction_left == pytest.approx(0.3) and guard.should_cool_down
