import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.evaluation import compare_records

WORDS = np.array(
    ["the", "a", "cat", "dog", "sat", "ran", "on", "in", "mat", "park", "today", "there", "big", "small", "red"]
)


def evaluated(data: list[tuple[Any, Any]], predictions: Any, metric: str) -> fb.evaluation.EvaluationRecord:
    return fb.evaluate(lambda inputs: [predictions[i] for i in inputs], data, [metric], batch_size=50)


def labels(n: int) -> tuple[list[int], list[int], list[int]]:
    """References and two models that err on nearly the same examples."""
    generator = np.random.default_rng(0)
    references = generator.integers(0, 4, n)
    first = np.where(generator.random(n) < 0.8, references, generator.integers(0, 4, n))
    second = np.where(generator.random(n) < 0.7, first, references)
    return references.tolist(), first.tolist(), second.tolist()


def texts(n: int) -> tuple[list[str], list[str], list[str]]:
    generator = np.random.default_rng(1)
    sides: tuple[list[str], list[str], list[str]] = ([], [], [])
    for _ in range(n):
        reference = generator.choice(WORDS, 12)
        first = np.where(generator.random(12) < 0.8, reference, generator.choice(WORDS, 12))
        second = np.where(generator.random(12) < 0.95, first, reference)
        for side, words in zip(sides, (reference, first, second), strict=True):
            side.append(" ".join(words))
    return sides


@pytest.mark.parametrize(("metric", "made"), [("f1_macro", labels), ("bleu", texts)])
def test_metrics_of_the_whole_set_are_resampled_in_pairs(
    metric: str, made: Callable[[int], tuple[list[Any], list[Any], list[Any]]]
) -> None:
    n = 300
    references, first, second = made(n)
    data = list(zip(range(n), references, strict=True))
    baseline = evaluated(data, first, metric)
    candidate = evaluated(data[::-1], second, metric)  # the same examples in another order
    verdict, beyond = compare_records(baseline, candidate, metric)
    score = fb.metrics.get(metric)
    generator = np.random.default_rng(2)
    slow = []
    for _ in range(500):
        drawn = generator.integers(0, n, n)
        wanted = [references[i] for i in drawn]
        slow.append(score([second[i] for i in drawn], wanted) - score([first[i] for i in drawn], wanted))
    ends = np.quantile(slow, [0.025, 0.975])
    assert (beyond.low, beyond.high) == pytest.approx(tuple(ends), abs=0.25 * (ends[1] - ends[0]))
    alone = baseline[metric].high - baseline[metric].low
    unpaired = math.sqrt(2) * alone
    assert beyond.high - beyond.low < 0.5 * unpaired
    assert verdict.decision == "better" and beyond.low > 0 and beyond.p_value < 0.01
    assert "paired (approximate)" in beyond.method
    same = compare_records(baseline, evaluated(data, first, metric), metric)[1]
    assert (same.low, same.high, same.p_value) == (0.0, 0.0, 1.0)
