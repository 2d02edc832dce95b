import numpy as np
import pytest

import fastbudget as fb
from fastbudget.evaluation import EvaluationRecord, find_alerts


def record(value, n=400, **fields):
    half = 1.96 * (value * (1 - value) / n) ** 0.5 + 1 / n if np.isfinite(value) else 0.0
    measured = fb.metrics.MetricValue(
        value=value, low=value - half, high=value + half, confidence=0.95, method="", num_examples=n
    )
    return EvaluationRecord(values={"accuracy": measured}, num_examples=n, seconds=1.0, **fields)


def kinds(alerts):
    return [alert.kind for alert in alerts]


@pytest.mark.parametrize("value", [0.3, 0.99])
def test_a_value_far_from_the_history_is_an_alert_in_both_directions(value):
    history = [{"accuracy": 0.70 + 0.005 * (index % 3)} for index in range(8)]
    assert kinds(find_alerts(record(value), history=history)) == ["outside_history"]
    assert find_alerts(record(0.71), history=history) == []
    assert find_alerts(record(value), history=history[:4]) == []  # too few to know


def test_training_at_its_usual_pace_raises_no_alert():
    values = [0.1, 0.45, 0.62, 0.71, 0.76, 0.79, 0.81, 0.82, 0.828, 0.833, 0.836]
    history = []
    for value in values:
        assert find_alerts(record(value), history=history) == []
        history.append(record(value))


def test_chance_alone_rarely_raises_an_alert():
    rng = np.random.default_rng(0)
    alerts = 0
    for _ in range(500):
        drawn = rng.binomial(400, 0.8, 11) / 400
        alerts += bool(find_alerts(record(drawn[-1]), history=[{"accuracy": value} for value in drawn[:-1]]))
    assert alerts <= 5


def test_nan_is_reported_with_its_share():
    assert "(2.50%)" in find_alerts(record(0.5, num_nan=10))[0].message
    assert kinds(find_alerts(record(float("nan")))) == ["nan"]


def test_one_class_predictions_and_accuracy_at_chance():
    rng = np.random.default_rng(0)
    references = rng.integers(0, 4, 400)
    constant = np.full(400, 2)
    alerts = find_alerts(record(float((references == 2).mean())), predictions=constant, references=references)
    assert kinds(alerts) == ["single_class", "chance"]
    good = np.where(rng.random(400) < 0.9, references, 0)
    assert find_alerts(record(float((good == references).mean())), predictions=good, references=references) == []
    scores = np.eye(4)[constant]
    assert "single_class" in kinds(find_alerts(record(0.25), predictions=scores, references=references))


def test_data_of_one_class_is_no_sign_of_a_broken_model():
    ones = np.ones(400, np.int64)
    assert "single_class" not in kinds(find_alerts(record(1.0), predictions=ones, references=ones))


def test_lengths_that_differ_are_refused():
    with pytest.raises(fb.InvalidInputError, match="same length"):
        find_alerts(record(0.5), predictions=[1, 2], references=np.arange(50) % 2)
