"""Stages by themselves: what ends them, in which direction, and what is remembered of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

import fastbudget as fb
from fastbudget.training import Stage
from fastbudget.training.stages import StageSequence

FIRST = Stage(name="first", targets={"loss": 3.0, "accuracy": 0.5}, mode={"loss": "min", "accuracy": "max"})


@pytest.mark.parametrize(
    ("metrics", "reached"),
    [
        ({"loss": 3.0, "accuracy": 0.5}, True),
        ({"loss": 2.0, "accuracy": 0.9, "other": 1.0}, True),
        ({"loss": 2.0, "accuracy": 0.4}, False),
        ({"loss": 3.1, "accuracy": 0.9}, False),
        ({"loss": math.nan, "accuracy": 0.9}, False),
        ({"loss": -math.inf, "accuracy": math.inf}, True),
    ],
    ids=str,
)
def test_all_targets_must_be_met_each_in_its_direction(metrics: dict[str, float], reached: bool) -> None:
    assert FIRST.is_reached(metrics) is reached
    assert (StageSequence([FIRST]).update(metrics, 5, 0.9) is not None) is reached


def test_one_mode_for_all_targets() -> None:
    stage = Stage(name="a", targets={"x": 1.0, "y": 2.0}, mode="max")
    assert stage.is_reached({"x": 1.0, "y": 2.5}) and not stage.is_reached({"x": 1.0, "y": 1.9})


def test_an_evaluation_that_lacks_a_target() -> None:
    with pytest.raises(fb.InvalidInputError, match=r"'first' has a target for accuracy; evaluate returned \['loss'\]"):
        FIRST.is_reached({"loss": 1.0})


def test_what_ends_a_stage() -> None:
    stages = StageSequence([
        Stage(name="a", targets={"score": 1.0}, mode="max", budget_share=0.2, max_steps=10),
        Stage(name="b", budget_share=0.3),
        Stage(name="c", max_steps=5),
        Stage(name="d"),
    ])  # fmt: skip
    nothing = {"score": 0.0}
    assert stages.update(nothing, 9, 0.85) is None and not stages.is_used_up(9, 0.85)
    assert stages.is_used_up(10, 0.85) and stages.is_used_up(9, 0.79)
    end = stages.update(nothing, 10, 0.85)
    assert end is not None and end.to_json() == {
        "stage_ended": "a", "reason": "max_steps", "stage": "b", "stage_steps": 10, "stage_spent_share": 0.15,
    }  # fmt: skip
    # b's share counts from its own beginning: what a left is not b's.
    assert not stages.is_used_up(100, 0.56) and stages.is_used_up(100, 0.54)
    end = stages.update({}, 200, 0.5)
    assert end is not None and (end.reason, end.next, end.steps) == ("budget_share", "c", 190)
    end = stages.update({}, 205, 0.4)
    assert end is not None and (end.reason, end.next) == ("max_steps", "d")
    assert stages.update({"score": 9.0}, 10_000, 0.0) is None and not stages.is_used_up(10_000, 0.0)
    assert not stages.is_done


def test_targets_count_before_limits_and_the_last_stage_ends_the_run() -> None:
    stages = StageSequence([Stage(name="only", targets={"score": 1.0}, mode="max", max_steps=5)])
    end = stages.update({"score": 1.0}, 7, 0.1)
    assert end is not None and (end.reason, end.next) == ("targets", None)
    assert stages.is_done and stages.update({"score": 2.0}, 8, 0.1) is None and not stages.is_used_up(50, 0.0)


def test_one_stage_at_a_time() -> None:
    stages = StageSequence([Stage(name=name, targets={"score": 1.0}, mode="max") for name in "abc"])
    for expected in ("b", "c", None):
        end = stages.update({"score": 5.0}, 1, 0.9)
        assert end is not None and end.next == expected


def test_the_state_goes_on_and_stages_may_be_added() -> None:
    given = [Stage(name="a", max_steps=5), Stage(name="b", max_steps=5)]
    stages = StageSequence(given)
    stages.update({}, 5, 0.7)
    again = StageSequence(given)
    again.load_state_dict(stages.state_dict())
    assert again.current.name == "b" and not again.is_used_up(9, 0.1) and again.is_used_up(10, 0.1)
    again.update({}, 10, 0.1)
    assert again.is_done
    longer = StageSequence([*given, Stage(name="c")])
    longer.load_state_dict(again.state_dict())
    assert longer.current.name == "c" and not longer.is_done
    with pytest.raises(fb.InvalidInputError, match="saved in stage 'b'"):
        StageSequence([Stage(name="x")]).load_state_dict(again.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": {"loss": 3.0}}, "mode must say 'max' or 'min' for loss"),
        ({"targets": {"loss": 3.0}, "mode": "auto"}, "'auto'"),
        ({"targets": {"loss": 3.0}, "mode": {"accuracy": "max"}}, "for loss"),
        ({"targets": {"loss": math.nan}, "mode": "min"}, "finite"),
        ({"budget_share": 0}, "budget_share"),
        ({"budget_share": 1.5}, "budget_share"),
        ({"max_steps": 0}, "max_steps"),
        ({"devices": 0}, "devices"),
        ({"seq_len": 0}, "seq_len"),
        ({"max_steps": "5"}, "integer of at least 1, got '5'"),
        ({"targets": {"loss": "low"}, "mode": "min"}, "finite number, got 'low'"),
        ({"precision": "fp8"}, "precision"),
    ],
    ids=str,
)
def test_what_a_stage_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        Stage(name="a", **options)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "empty"),
        (Stage(name="a"), "must be a list"),
        ([{"name": "a"}], "must be a list"),
        ([Stage(name="a", max_steps=1), Stage(name="a")], "used twice: a"),
        ([Stage(name="a"), Stage(name="b")], "'a' never ends"),
        ([Stage(name="a", budget_share=0.7), Stage(name="b", budget_share=0.4)], "add up to 1.1"),
    ],
    ids=str,
)
def test_what_a_sequence_refuses(stages: list[Stage], message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        StageSequence(stages)
