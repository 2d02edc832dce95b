from __future__ import annotations

import math
import time

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.stats import bootstrap_counts, bootstrap_ratio


def share_of_first(counts: np.ndarray) -> np.ndarray:
    return np.asarray(counts[..., 0] / counts.sum(-1))


def test_counts_agree_with_the_normal_approximation() -> None:
    low, high = bootstrap_counts(np.array([300, 700]), share_of_first, resamples=4000)
    half = 1.96 * math.sqrt(0.3 * 0.7 / 1000)
    assert low == pytest.approx(0.3 - half, abs=0.004)
    assert high == pytest.approx(0.3 + half, abs=0.004)


def test_counts_agree_with_resampling_the_examples() -> None:
    examples = np.repeat([0, 1, 2], [60, 25, 15])
    generator = np.random.default_rng(5)
    slow = [np.bincount(generator.choice(examples, len(examples)), minlength=3)[0] / len(examples) for _ in range(4000)]
    assert bootstrap_counts(np.array([60, 25, 15]), share_of_first, resamples=4000) == pytest.approx(
        tuple(np.quantile(slow, [0.025, 0.975])), abs=0.012
    )


def test_the_seed_decides_and_the_point_is_inside() -> None:
    counts = np.array([3, 1])
    first = bootstrap_counts(counts, share_of_first, seed=1)
    assert first == bootstrap_counts(counts, share_of_first, seed=1)
    assert first[0] <= 0.75 <= first[1]
    wide = bootstrap_counts(counts, share_of_first, seed=1, confidence=0.99)
    assert wide[0] <= first[0] and wide[1] >= first[1]


def test_pseudo_counts_open_a_certain_sample() -> None:
    counts = np.array([50, 0])
    assert bootstrap_counts(counts, share_of_first) == (1.0, 1.0)
    low, high = bootstrap_counts(counts, share_of_first, pseudo_counts=np.array([2.0, 2.0]))
    assert low < 0.97 and high == 1.0


def test_many_categories_are_drawn_in_blocks() -> None:
    counts = np.full(100_000, 2)  # forty resamples a block, and so many that ends are a normal distribution's
    low, high = bootstrap_counts(counts, lambda c: np.asarray(c[..., :50_000].sum(-1) / c.sum(-1)))
    half = 1.96 * math.sqrt(0.25 / 200_000)
    assert low == pytest.approx(0.5 - half, abs=0.3 * half)
    assert high == pytest.approx(0.5 + half, abs=0.3 * half)


def test_macro_f1_of_few_examples_per_class_covers_the_truth() -> None:
    # Every class has four examples on average. Percentiles alone, which double the bias, cover the truth in half of
    # these samples.
    generator = np.random.default_rng(0)
    classes, n, trials, covered = 50, 200, 60, 0
    confusion = 0.7 * np.eye(classes) + 0.3 * generator.dirichlet(np.full(classes, 0.3), classes)
    truth = generator.dirichlet(np.full(classes, 5.0))[:, None] * confusion
    true_f1 = float((2 * np.diagonal(truth) / (truth.sum(0) + truth.sum(1))).mean())
    metric = fb.metrics.get("f1_macro")
    for _ in range(trials):
        value = metric.interval(generator.multinomial(n, truth.ravel() / truth.sum()).reshape(classes, classes))
        covered += value.low <= true_f1 <= value.high
    assert covered / trials >= 0.8


def test_a_ratio_agrees_with_a_plain_bootstrap() -> None:
    generator = np.random.default_rng(0)
    denominators = generator.integers(1, 20, 200).astype(float)
    numerators = denominators * generator.gamma(2, 1, 200)
    slow = []
    for _ in range(4000):
        drawn = generator.integers(0, 200, 200)
        slow.append(numerators[drawn].sum() / denominators[drawn].sum())
    expected = np.quantile(slow, [0.025, 0.975])
    width = expected[1] - expected[0]
    assert bootstrap_ratio(numerators, denominators, resamples=4000) == pytest.approx(tuple(expected), abs=0.1 * width)


def test_dependent_examples_make_a_wider_interval_than_they_seem_to() -> None:
    generator = np.random.default_rng(1)
    groups = np.repeat(np.arange(30), 20)
    generator.shuffle(groups)
    numerators = generator.normal(0, 1, 30)[groups] + generator.normal(0, 0.3, 600) + 5
    ones = np.ones(600)
    alone, grouped = bootstrap_ratio(numerators, ones), bootstrap_ratio(numerators, ones, groups=groups)
    assert grouped[1] - grouped[0] > 3 * (alone[1] - alone[0])  # √20 in theory
    each = bootstrap_ratio(numerators, ones, groups=np.arange(600) * 7 - 3)
    assert each == pytest.approx(alone)


def test_units_without_weight_change_nothing() -> None:
    low, high = bootstrap_ratio(np.array([2.0, 0, 0, 0]), np.array([1.0, 0, 0, 0]))
    assert (low, high) == (2.0, 2.0)
    with pytest.raises(fb.InvalidInputError):
        bootstrap_ratio(np.zeros(3), np.zeros(3))


def test_what_cannot_be_resampled_is_refused() -> None:
    one = np.ones(1)
    with pytest.raises(fb.InvalidInputError, match="at least one example"):
        bootstrap_counts(np.zeros(3, np.int64), share_of_first)
    for numerators, denominators in ((one, np.ones(2)), (np.ones(0), np.ones(0))):
        with pytest.raises(fb.InvalidInputError, match="at least one"):
            bootstrap_ratio(numerators, denominators)
    with pytest.raises(fb.InvalidInputError, match="one entry per example"):
        bootstrap_ratio(one, one, groups=np.array([0, 1]))
    with pytest.raises(fb.InvalidInputError, match="confidence"):
        bootstrap_ratio(one, one, confidence=1.0)


def binomial_bounds(confidence: float, trials: int, sigmas: float = 3.5) -> tuple[float, float]:
    error = math.sqrt(confidence * (1 - confidence) / trials)
    return confidence - sigmas * error, confidence + sigmas * error


def test_the_interval_of_macro_f1_covers_the_truth() -> None:
    # 300 samples of 300 examples from a known confusion matrix. Bounds: the simulation's own binomial error, and 2 %
    # for the percentile bootstrap being an approximation at this size.
    truth = np.array([[0.28, 0.03, 0.02], [0.05, 0.30, 0.03], [0.03, 0.04, 0.22]])
    diagonal, columns, rows = np.diagonal(truth), truth.sum(0), truth.sum(1)
    true_f1 = float((2 * diagonal / (columns + rows)).mean())
    metric = fb.metrics.get("f1_macro")
    generator = np.random.default_rng(3)
    trials, covered = 300, 0
    for _ in range(trials):
        state = generator.multinomial(300, truth.ravel()).reshape(3, 3)
        interval = metric.interval(state)
        assert interval.low <= interval.value <= interval.high
        covered += interval.low <= true_f1 <= interval.high
    low, high = binomial_bounds(0.95, trials)
    assert low - 0.02 <= covered / trials <= min(1.0, high + 0.02)


def dense_interval(name: str, matrix: np.ndarray, resamples: int) -> tuple[float, float]:
    """The slow, obvious reference: whole matrices drawn with the pseudo-counts in their cells."""
    classes = len(matrix)
    seen = (matrix.sum(0) + matrix.sum(1)) > 0
    share = matrix.sum(1) / matrix.sum()
    weights = matrix.astype(float)
    for row in range(classes):
        weights[row, row] += 2 * share[row]
        for column in range(classes):
            if column != row and seen[column]:
                weights[row, column] += 2 * share[row] / (seen.sum() - 1)
    metric = fb.metrics.get(name)
    generator = np.random.default_rng(8)
    total = int(matrix.sum())

    def replicates(cells: np.ndarray) -> np.ndarray:
        shares = cells.ravel() / cells.sum()
        return np.array(
            [metric.result(generator.multinomial(total, shares).reshape(classes, classes)) for _ in range(resamples)]
        )

    value = metric.result(matrix)
    ends = np.quantile(replicates(weights), [0.025, 0.975]) - 2 * (replicates(matrix).mean() - value)
    return max(0.0, min(ends[0], value)), min(1.0, max(ends[1], value))


@pytest.mark.parametrize("name", ["f1_macro", "f1_weighted", "precision_macro", "recall_micro", "f1_binary"])
@pytest.mark.parametrize("n", [12, 150])
def test_resampling_the_filled_cells_agrees_with_resampling_the_matrix(name: str, n: int) -> None:
    classes = 2 if name == "f1_binary" else 6
    generator = np.random.default_rng(n)
    references = generator.integers(0, classes, n)
    predictions = np.where(generator.random(n) < 0.8, references, generator.integers(0, classes, n))
    if classes == 6:
        references[references == 4] = predictions[predictions == 4] = 3  # one class never seen
    metric = fb.metrics.get(name, num_classes=classes)
    state = metric.update(metric.init(), predictions, references)
    value, expected = metric.interval(state), dense_interval(name, np.asarray(state), 4000)
    assert (value.low, value.high) == pytest.approx(expected, abs=0.12 * (expected[1] - expected[0]))


def test_the_interval_of_a_thousand_classes_takes_no_matrix_of_resamples() -> None:
    generator = np.random.default_rng(0)
    predictions, references = generator.integers(0, 1000, (2, 5000))
    references[:4000] = predictions[:4000]
    metric = fb.metrics.get("f1_macro")
    state = metric.update(metric.init(), predictions, references)
    begin = time.perf_counter()
    value = metric.interval(state)
    # Whole matrices took 40 s.
    assert time.perf_counter() - begin < 10
    assert value.low <= value.value <= value.high and value.high - value.low < 0.05
    assert value.low <= 0.8 <= value.high  # the truth, above the value: five examples a class make F1 too low


def test_a_faultless_sample_of_macro_f1_is_not_certain() -> None:
    metric = fb.metrics.get("f1_macro")
    value = metric.interval(np.diag([30, 30, 30]))
    assert value.value == value.high == 1.0
    assert 0.9 < value.low < 0.99
    single = metric.interval(np.array([[30]]))  # one class only: nothing to confuse it with
    assert (single.low, single.high) == (1.0, 1.0)


def test_accuracy_has_wilsons_interval_and_counts_take_no_groups() -> None:
    from fastbudget.stats import wilson_interval

    metric = fb.metrics.get("accuracy")
    state = np.array([[27, 1], [2, 0]])
    value = metric.interval(state, 0.9)
    assert (value.low, value.high) == wilson_interval(27, 30, 0.9)
    assert value.to_json() == {
        "value": 0.9, "low": value.low, "high": value.high, "confidence": 0.9, "method": "Wilson", "num_examples": 30,
    }  # fmt: skip
    for name in ("accuracy", "f1_macro"):
        with pytest.raises(fb.InvalidInputError, match="groups"):
            fb.metrics.get(name).interval(state, groups=np.arange(30))
