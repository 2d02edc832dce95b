"""Shared by all tests: one torch thread, repeatable property tests, a clock that tests move by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

torch.set_num_threads(1)

hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("repeatable")


class HandClock:
    """A clock that moves only when told to."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self.now = 0.0
        self._epoch = wall

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self._epoch + self.now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(scope="session")
def hand_clock() -> Callable[[], HandClock]:
    return HandClock


@pytest.fixture(scope="session")
def read_cases() -> Callable[[str], list[dict[str, Any]]]:
    """Return the cases of one JSON file beside the metric tests."""

    def read(name: str) -> list[dict[str, Any]]:
        return json.loads((Path(__file__).parent / "metrics" / "cases" / f"{name}.json").read_text())["cases"]

    return read
