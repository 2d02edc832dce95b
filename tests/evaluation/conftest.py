"""Data whose right answers are known, and models whose every mistake is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


class Questions:
    """``data[i] -> (inputs [4], class)``; the input holds the example's number. Counts what is read."""

    def __init__(self, count: int, num_classes: int = 3, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.references = generator.integers(0, num_classes, count)
        self.inputs = generator.normal(size=(count, 4)).astype(np.float32)
        self.inputs[:, 0] = np.arange(count)
        self.reads = 0

    def __len__(self) -> int:
        return len(self.references)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.reads += 1
        return self.inputs[index], int(self.references[index])


class Answers:
    """Class scores [n, classes]: wrong on the examples in ``wrong``, sure by ``gap``. Counts what it was asked."""

    def __init__(self, data: Questions, wrong: Any, num_classes: int = 3, gap: Any = 2.0) -> None:
        self.scores = np.zeros((len(data), num_classes), np.float32)
        answers = data.references.copy()
        answers[wrong] = (answers[wrong] + 1) % num_classes
        self.scores[np.arange(len(data)), answers] = gap
        self.asked: list[int] = []
        self.sizes: list[int] = []

    def __call__(self, inputs: Any) -> Any:
        numbers = np.asarray(inputs)[:, 0].astype(int)
        self.asked += numbers.tolist()
        self.sizes.append(len(numbers))
        return self.scores[numbers]


@pytest.fixture(scope="session")
def questions() -> type[Questions]:
    return Questions


@pytest.fixture(scope="session")
def answers() -> type[Answers]:
    return Answers
