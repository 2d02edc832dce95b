"""Stopping: the direction of improvement, the minimum delta, targets, and patience that survives a resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastbudget as fb
from fastbudget.training import EarlyStopping


def stops_at(values: list[float], **options: Any) -> tuple[int, str | None]:
    """Return the number of the value after which it stops, from 1, and why."""
    stopping = EarlyStopping(**options)
    for number, value in enumerate(values, start=1):
        reason = stopping.update(value)
        assert reason == stopping.stop_reason
        if reason is not None:
            return number, reason
    return len(values), None


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4], {"mode": "max", "patience": 1}, (4, None)),
        ([0.4, 0.3, 0.2, 0.1], {"mode": "min", "patience": 1}, (4, None)),
        ([0.4, 0.3, 0.2, 0.1], {"mode": "max", "patience": 2}, (3, "patience")),
        ([0.1, 0.2, 0.3, 0.4], {"mode": "min", "patience": 2}, (3, "patience")),
        ([0.5, 0.5, 0.5], {"mode": "max", "patience": 2}, (3, "patience")),
        ([0.5, 0.4, 0.6, 0.5, 0.4], {"mode": "max", "patience": 2}, (5, "patience")),
        # Steps smaller than min_delta don't improve, in either direction; together they do.
        ([0.50, 0.55, 0.59, 0.60], {"mode": "max", "patience": 2, "min_delta": 0.1}, (3, "patience")),
        ([0.50, 0.45, 0.41, 0.40], {"mode": "min", "patience": 2, "min_delta": 0.1}, (3, "patience")),
        ([0.50, 0.55, 0.65, 0.66, 0.80], {"mode": "max", "patience": 2, "min_delta": 0.1}, (5, None)),
        ([-5.0, -4.0, -3.0], {"mode": "max", "patience": 1, "min_delta": 0.5}, (3, None)),
        ([0.5, math.nan, math.nan], {"mode": "max", "patience": 2}, (3, "patience")),
        ([math.nan, math.nan], {"mode": "min", "patience": 2}, (2, "patience")),
        ([math.inf, 3.0, 2.0], {"mode": "min", "patience": 1}, (3, None)),
        ([0.1, 0.9, 0.95], {"mode": "max", "target": 0.9}, (2, "target")),
        ([0.9, 0.2, 0.1], {"mode": "min", "target": 0.2}, (2, "target")),
        ([0.1, math.nan, 0.2], {"mode": "max", "target": 0.9}, (3, None)),
        ([0.95], {"mode": "max", "target": 0.9, "patience": 1, "min_delta": 1.0}, (1, "target")),
    ],
)
def test_when_it_stops(values: list[float], options: dict[str, Any], expected: tuple[int, str | None]) -> None:
    assert stops_at(values, **options) == expected


@given(st.lists(st.integers(-20, 20)), st.integers(1, 4), st.integers(0, 5))
def test_both_modes_are_mirror_images(values: list[int], patience: int, min_delta: int) -> None:
    options = {"patience": patience, "min_delta": float(min_delta)}
    mirrored = [-float(value) for value in values]
    assert stops_at(list(map(float, values)), mode="max", **options) == stops_at(mirrored, mode="min", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "auto", "patience": 1}, "mode"),
        ({"mode": "max", "patience": 0}, "patience"),
        ({"mode": "min", "patience": 1, "min_delta": -0.1}, "direction comes from mode"),
        ({"mode": "min", "patience": 1, "min_delta": math.nan}, "min_delta"),
        ({"mode": "min", "target": math.nan}, "target"),
        ({"mode": "min"}, "never stops"),
    ],
    ids=str,
)
def test_what_it_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.InvalidInputError, match=message):
        EarlyStopping(**options)


def trainer(run_dir: Path, scores: Any, **options: Any) -> fb.Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "model": torch.nn.Linear(4, 2), "train_data": [(torch.randn(8, 4), torch.randint(2, (8,)))],
        "loss": "cross_entropy", "budget": fb.Budget(wall_hours=1), "run_dir": run_dir,
        "evaluate": lambda _: {"score": next(scores)}, "metric": "score", "evaluate_every": 2,
    }  # fmt: skip
    return fb.Trainer(**{**settings, **options})


def test_a_run_stops_by_patience_and_by_target(tmp_path: Path) -> None:
    scores = iter([0.1, 0.3, 0.2, 0.25, 0.1])
    stopping = EarlyStopping(mode="max", patience=2)
    result = trainer(tmp_path / "patience", scores, early_stopping=stopping).fit()
    assert (result.stop_reason, result.steps, result.best_step) == ("patience", 6, 2)
    scores = iter([3.0, 2.0, 0.5, 0.1])
    stopping = EarlyStopping(mode="min", target=0.5)
    result = trainer(tmp_path / "target", scores, early_stopping=stopping, mode="min").fit()
    assert (result.stop_reason, result.steps, result.best_step) == ("target", 4, 4)
    # A run that stopped so resumes to nothing more, unless its patience grows.
    again = trainer(tmp_path / "patience", iter([]), early_stopping=EarlyStopping(mode="max", patience=2)).fit(
        resume=True
    )
    assert (again.stop_reason, again.steps) == ("patience", 6)
    more = EarlyStopping(mode="max", patience=3)
    again = trainer(tmp_path / "patience", iter([0.2, 0.9]), early_stopping=more).fit(resume=True)
    assert (again.stop_reason, again.steps) == ("patience", 8)


def test_patience_survives_a_resume(tmp_path: Path) -> None:
    """transformers starts counting anew (huggingface/transformers #28544)."""
    scores = iter([0.5, 0.4, 0.4, 0.4, 0.4, 0.4])
    first = trainer(tmp_path, scores, early_stopping=EarlyStopping(mode="max", patience=3), max_steps=4).fit()
    assert first.stop_reason == "completed" and first.steps == 4
    result = trainer(tmp_path, scores, early_stopping=EarlyStopping(mode="max", patience=3)).fit(resume=True)
    assert (result.stop_reason, result.steps) == ("patience", 6)


def test_a_direction_that_contradicts_the_trainers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fb.InvalidInputError, match="'min' and the trainer 'max'"):
        trainer(tmp_path, iter([]), early_stopping=EarlyStopping(mode="min", patience=1))
