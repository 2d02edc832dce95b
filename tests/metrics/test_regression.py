import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastbudget as fb

numbers = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=50)


@given(numbers, st.integers(1, 50))
def test_errors_equal_plain_numpy_however_they_are_split(pairs, cut):
    predicted, reference = np.array(pairs).T
    for name, plain in (("mse", np.square), ("mae", np.abs)):
        metric = fb.metrics.get(name)
        expected = plain(predicted - reference).mean()
        assert metric(predicted, reference) == pytest.approx(expected)
        halves = [
            metric.update(metric.init(), predicted[part], reference[part]) for part in (slice(cut), slice(cut, None))
        ]
        assert metric.result(metric.merge(*halves)) == pytest.approx(expected)


def test_an_interval_holds_the_value_and_several_numbers_count_as_one_example():
    generator = torch.Generator().manual_seed(0)
    predicted, reference = (torch.randn(200, 3, generator=generator) for _ in range(2))
    metric = fb.metrics.get("mse")
    value = metric.interval(metric.update(metric.init(), predicted, reference))
    assert value.low < value.value < value.high and value.num_examples == 200
    assert value.value == pytest.approx(float((predicted - reference).pow(2).mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("predicted", "reference", "expected"),
    [
        (np.zeros((4, 1)), np.zeros(4), r"same shape.*\[4, 1\] and \[4\]"),
        (np.zeros(4), np.zeros(5), "same shape"),
        ([1.0, float("nan")], [1.0, 1.0], r"predictions\[1\] holds NaN"),
        ([1.0, 1.0], [float("inf"), 1.0], r"references\[0\] holds NaN or infinity"),
        ([], [], "at least one example"),
    ],
)
def test_nonsense_is_an_error(predicted, reference, expected):
    with pytest.raises(fb.InvalidInputError, match=expected):
        fb.metrics.get("mae")(predicted, reference)
