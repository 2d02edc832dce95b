"""Learning rates: the shapes, and that any budget ends annealed, however long its steps turn out to be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastbudget as fb
from fastbudget.budget import BudgetGuard
from fastbudget.training import LearningRateSchedule, Progress

COOL_DOWN = LearningRateSchedule(shape="wsd")


@pytest.mark.parametrize(
    ("schedule", "step", "progress", "factor"),
    [
        (LearningRateSchedule(), 0, 0.0, 1.0),
        (LearningRateSchedule(), 5, 0.25, 0.75),
        (LearningRateSchedule(), 5, 1.0, 0.0),
        (LearningRateSchedule(), 5, 1.7, 0.0),
        (LearningRateSchedule(final_fraction=0.1), 5, 1.0, 0.1),
        (LearningRateSchedule(final_fraction=0.1), 5, 0.5, 0.55),
        (LearningRateSchedule(warmup_steps=4), 0, 0.0, 0.25),
        (LearningRateSchedule(warmup_steps=4), 3, 0.0, 1.0),
        (LearningRateSchedule(warmup_steps=4), 1, 0.5, 0.25),
        (LearningRateSchedule(shape="constant", warmup_steps=2), 0, 0.9, 0.5),
        (LearningRateSchedule(shape="constant"), 99, 0.9, 1.0),
        (LearningRateSchedule(shape="constant"), 99, 1.0, 1.0),
        (LearningRateSchedule(shape="cosine"), 5, 0.0, 1.0),
        (LearningRateSchedule(shape="cosine"), 5, 0.5, 0.5),
        (LearningRateSchedule(shape="cosine"), 5, 1.0, 0.0),
        (LearningRateSchedule(shape="cosine", final_fraction=0.1), 5, 1 / 3, 0.1 + 0.9 * 0.75),
        (COOL_DOWN, 99, 0.5, 1.0),
        (COOL_DOWN, 99, 0.8, 1.0),
        (COOL_DOWN, 99, 0.85, 0.5),  # 1 - sqrt(1/4)
        (COOL_DOWN, 99, 0.9, 1 - math.sqrt(0.5)),
        (COOL_DOWN, 99, 1.0, 0.0),
        (COOL_DOWN, 99, 1.3, 0.0),
        (LearningRateSchedule(shape="wsd", cool_down_share=0.5, final_fraction=0.2), 9, 0.625, 0.2 + 0.8 * 0.5),
        (LearningRateSchedule(shape="wsd", cool_down_share=1.0), 9, 0.25, 0.5),
        (LearningRateSchedule(shape="wsd", warmup_steps=10), 4, 0.2, 0.5),
    ],
    ids=str,
)
def test_values(schedule: LearningRateSchedule, step: int, progress: float, factor: float) -> None:
    assert schedule.factor(step, progress) == pytest.approx(factor)


@pytest.mark.parametrize(
    "options",
    [
        {"shape": "triangle"}, {"warmup_steps": -1}, {"final_fraction": 1.5}, {"final_fraction": -0.1},
        {"cool_down_share": 0}, {"cool_down_share": 1.1}, {"cool_down_share": math.nan},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_schedule_refuses(options: dict[str, Any]) -> None:
    with pytest.raises(fb.InvalidInputError, match=next(iter(options)).replace("shape", "must be one of")):
        LearningRateSchedule(**options)


def test_what_progress_refuses() -> None:
    with pytest.raises(fb.InvalidInputError, match="needs max_steps"):
        Progress(over="steps")
    with pytest.raises(fb.InvalidInputError, match="over must be one of"):
        Progress(over="time")  # type: ignore[arg-type]


def test_progress_over_steps_is_their_share_whatever_the_budget_says() -> None:
    progress = Progress(max_steps=50, over="steps")
    assert [progress.update(step, steps_left=1) for step in range(50)] == [step / 50 for step in range(50)]


@pytest.mark.parametrize("left", [None, 1000.0])
def test_a_budget_that_does_not_end_the_run_changes_nothing(left: float | None) -> None:
    progress = Progress(max_steps=50)
    assert [progress.update(step, left) for step in range(50)] == [step / 50 for step in range(50)]


def test_exact_forecasts_give_the_schedule_over_steps() -> None:
    """A budget of 200 steps is a run of 200 steps, for each shape."""
    for shape in ("linear", "cosine", "wsd"):
        schedule = LearningRateSchedule(shape=shape)  # type: ignore[arg-type]
        progress = Progress(decay_starts=schedule.decay_starts)
        factors = [schedule.factor(step, progress.update(step, 200.0 - step)) for step in range(200)]
        assert factors == pytest.approx([schedule.factor(step, step / 200) for step in range(200)], abs=0.02)


def rates(
    run_dir: Path, clock: Any, seconds: float, schedule: LearningRateSchedule, step_s: Callable[[int], float],
    *, max_steps: int | None = None, evaluate_every: int | None = None, evaluation_s: float = 0.0,
) -> list[float]:  # fmt: skip
    """The factors of a whole run whose steps last ``step_s``, under a budget of so many seconds."""
    found: list[float] = []
    progress = Progress(max_steps=max_steps, decay_starts=schedule.decay_starts)
    budget = fb.Budget(wall_hours=seconds / 3600)
    with BudgetGuard(budget, run_dir=run_dir, clock=clock) as guard:
        if evaluate_every:
            guard.evaluate(lambda: clock.advance(evaluation_s))
        for step, _ in enumerate(guard.steps(range(max_steps or 10**6))):
            found.append(schedule.factor(step, progress.update(step, guard.steps_left)))
            clock.advance(step_s(step))
            if evaluate_every and step % evaluate_every == evaluate_every - 1:
                guard.evaluate(lambda: clock.advance(evaluation_s))
    return found


SPEEDS: dict[str, Callable[[int], float]] = {
    "steady": lambda _: 1.0,
    "compiling first": lambda step: 60.0 if step == 0 else 1.0,
    "slower early on": lambda step: 1.0 if step < 300 else 3.0,
    "faster early on": lambda step: 3.0 if step < 150 else 1.0,
    "slower while cooling down": lambda step: 1.0 if step < 850 else 3.0,
    "faster while cooling down": lambda step: 1.0 if step < 850 else 0.2,
    "uneven": lambda step: 1.0 + 0.8 * math.sin(12.9898 * step),
    "stalls": lambda step: 40.0 if step in (300, 700) else 1.0,
}


@pytest.mark.parametrize(("shape", "evaluations"), [("wsd", False), ("wsd", True), ("linear", True), ("cosine", False)])
@pytest.mark.parametrize("speed", SPEEDS)
def test_any_budget_ends_annealed(tmp_path: Path, clock: Any, speed: str, evaluations: bool, shape: Any) -> None:
    schedule = LearningRateSchedule(shape=shape)
    more = {"evaluate_every": 40, "evaluation_s": 10.0} if evaluations else {}
    factors = rates(tmp_path, clock, 1000, schedule, SPEEDS[speed], **more)
    assert factors[-1] < 0.03 and factors == sorted(factors, reverse=True)
    falls = [a - b for a, b in itertools.pairwise(factors)]
    first = next(index for index, fall in enumerate(falls) if fall > 0)
    share = 1 - first / len(factors)
    if shape == "wsd":
        # The last fifth of the steps, and no less where their speed changes before; what happens later can't be known.
        assert share > 0.15 or "cooling" in speed
        assert share < 0.3 or "cooling" in speed
        assert sorted(falls)[-2] < 0.15, "a jump, beside the first step of 1 - sqrt"
    else:
        assert max(falls) < 0.05, "a jump"


def test_steps_may_end_a_run_before_its_budget_does(tmp_path: Path, clock: Any) -> None:
    exact = [COOL_DOWN.factor(step, step / 500) for step in range(500)]
    assert rates(tmp_path / "a", clock, 1000, COOL_DOWN, lambda _: 1.0, max_steps=500) == exact
    cut = rates(tmp_path / "b", clock, 1000, COOL_DOWN, lambda _: 1.0, max_steps=5000)
    assert len(cut) < 1000 and cut[-1] < 0.03
    # A budget that turns out too short in the middle of a linear decay.
    linear = LearningRateSchedule()
    cut = rates(tmp_path / "c", clock, 1000, linear, lambda step: 1.0 if step < 500 else 2.0, max_steps=950)
    assert len(cut) < 760 and cut[-1] < 0.01 and cut == sorted(cut, reverse=True)


def test_a_cool_down_goes_on_after_a_resume(tmp_path: Path, clock: Any) -> None:
    progress = Progress(decay_starts=0.8)
    for step in range(90):
        progress.update(step, 100.0 - step)
    again = Progress(decay_starts=0.8)
    again.load_state_dict(progress.state_dict())
    for step in range(90, 100):
        assert again.update(step, 100.0 - step) == progress.update(step, 100.0 - step)
    assert again.value == pytest.approx(0.99, abs=0.005)


@pytest.mark.parametrize("starts", [0.0, 0.8])
def test_another_end_is_planned_anew(starts: float) -> None:
    saved = Progress(max_steps=100, decay_starts=starts)
    for step in range(100):
        saved.update(step)
    same, longer = Progress(max_steps=100, decay_starts=starts), Progress(max_steps=400, decay_starts=starts)
    assert not same.load_state_dict(saved.state_dict()) and longer.load_state_dict(saved.state_dict())
    assert same.update(99) == 0.99 and longer.update(100) == 0.25
    # A budget that was raised: until its room is known, nothing changes; then it is that of all steps.
    richer = Progress(decay_starts=starts, budget={"gpu_hours": 2.0})
    assert richer.load_state_dict({"value": 0.99, "end": {"max_steps": None, "budget": {"gpu_hours": 1.0}}})
    assert [richer.update(100), richer.update(101, 299.0)] == [0.99, pytest.approx(101 / 400)]
    assert richer.update(102, 298.0) == pytest.approx(102 / 400, abs=0.001)
