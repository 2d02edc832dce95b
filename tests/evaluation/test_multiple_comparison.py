import json

import numpy as np
import pytest

import fastbudget as fb
from fastbudget.evaluation import compare_many

N = 3000
DATA = [(index, index % 5) for index in range(N)]


def model(rate, seed):
    """A model that is right on a random share of the examples, and counts what it is asked."""
    right = np.random.default_rng(seed).random(N) < rate
    calls = []

    def predict(inputs):
        inputs = np.asarray(inputs)
        calls.append(len(inputs))
        return np.where(right[inputs], inputs % 5, (inputs + 1) % 5)

    predict.calls, predict.accuracy = calls, right.mean()
    return predict


def record(predict):
    found = fb.evaluate(predict, DATA, model_key=f"model {id(predict)}")
    predict.calls.clear()
    return found


def test_one_candidate_against_several_baselines_runs_once_per_example():
    baselines = {name: record(model(rate, seed)) for name, rate, seed in (("a", 0.5, 1), ("b", 0.9, 2), ("c", 0.4, 3))}
    candidate = model(0.7, 4)
    table = compare_many(baselines, candidate, DATA)
    assert [(row.baseline, row.decision) for row in table.rows] == [("a", "better"), ("b", "worse"), ("c", "better")]
    assert sum(candidate.calls) == table.num_examples == table.num_predicted < N / 4
    for row in table.rows:
        truth = candidate.accuracy - baselines[row.baseline]["accuracy"].value
        assert row.difference.low <= truth <= row.difference.high
        assert row.p_value <= 0.05
    assert table["a"] is table.rows[0]
    json.dumps(table.to_json(), allow_nan=False)


def test_an_ablation_table_stops_running_what_is_decided():
    base = record(model(0.8, 1))
    ablations = {"without attention": model(0.2, 2), "without dropout": model(0.8, 3)}
    table = compare_many(base, ablations, DATA)
    assert table["without attention"].decision == "worse"
    assert sum(ablations["without attention"].calls) < 200
    full = ablations["without dropout"].accuracy - base["accuracy"].value
    assert table["without dropout"].decision == ("better" if full > 0 else "worse" if full < 0 else "equal")
    assert table["without dropout"].num_examples == N
    assert table.reason == "every example was evaluated"
    assert table["without dropout"].difference.mid == pytest.approx(full)


def test_one_pair_is_as_strict_as_compare():
    base, candidate = record(model(0.6, 1)), model(0.7, 2)
    table = compare_many(base, candidate, DATA)
    verdict = fb.compare(base, candidate, DATA, weighted=False)
    assert (table.rows[0].decision, table.num_examples) == (verdict.decision, verdict.num_examples)


def test_a_margin_asks_for_not_worse():
    base = record(model(0.8, 1))
    table = compare_many(base, {"x": model(0.8, 2), "y": model(0.5, 3)}, DATA, margin=0.1)
    assert (table["x"].decision, table["y"].decision) == ("not_worse", "worse")
    assert table.num_examples < N


def test_the_whole_table_errs_as_rarely_as_promised():
    # All baselines are as good as the candidate, and differ on many examples: any decision before the end is wrong.
    rng = np.random.default_rng(0)
    size, wrong, tables = 400, 0, 60
    data = [(index, 0) for index in range(size)]
    for trial in range(tables):
        right = rng.permutation(np.arange(size) < 280)

        def predict(inputs, right=right):
            return np.where(right[np.asarray(inputs)], 0, 1)

        baselines = {}
        for name in "abcd":
            other = rng.permutation(right)
            baselines[name] = fb.evaluate(lambda x, other=other: np.where(other[np.asarray(x)], 0, 1), data)
        table = compare_many(baselines, predict, data, alpha=0.2, seed=trial)
        wrong += any(row.decision in ("better", "worse") for row in table.rows)
    assert wrong <= 20  # of 60 at alpha 0.2: more has a chance below 1%


def test_holm_decides_more_than_dividing_alpha_alone():
    # Nine clear rows leave the tenth more of alpha than a tenth.
    rng = np.random.default_rng(0)
    order = rng.permutation(N)
    right = np.zeros(N, bool)
    right[order[: N // 2]] = True
    close = right.copy()
    close[order[-int(0.05 * N) :]] = True

    def answer(right):
        return lambda x: np.where(right[np.asarray(x)], np.asarray(x) % 5, (np.asarray(x) + 1) % 5)

    base = fb.evaluate(answer(right), DATA)
    clear = {f"bad {k}": answer(np.zeros(N, bool)) for k in range(9)}
    with_others = compare_many(base, clear | {"close": answer(close)}, DATA)
    assert with_others["close"].decision == "better"
    from fastbudget.stats import SequentialPairedTest

    test = SequentialPairedTest(N, alpha=0.05 / 10, baseline=right.astype(float), seed=0)
    while test.decision == "undecided":
        where = test.next_batch(64)
        # The table's order of the examples is decided by content; any order draws alike, on average.
        test.update(where, close[where].astype(float))
    assert with_others["close"].num_examples <= test.num_evaluated * 1.5


def test_what_has_a_baselines_content_is_equal_without_a_test():
    import torch

    torch.manual_seed(0)
    data = [(torch.randn(4), torch.tensor(index % 2)) for index in range(50)]
    base = torch.nn.Linear(4, 2)
    found = fb.evaluate(base, data)
    table = compare_many({"same": found}, base, data)
    assert table["same"].decision == "equal"
    assert table["same"].p_value is None
    assert table.num_predicted == 0


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (({}, model(0.5, 0)), {}, "a baseline and a candidate"),
        ((None, {}), {}, "a baseline and a candidate"),
        ((None, model(0.5, 0)), {"alpha": 0.0}, "alpha"),
        ((None, model(0.5, 0)), {"margin": -0.1}, "margin"),
        ((None, model(0.5, 0)), {"metric": "f1_macro"}, "mean of values per example"),
    ],
)
def test_comparisons_that_cannot_be(arguments, options, message):
    baselines, predict = arguments
    if baselines is None:
        baselines = record(model(0.5, 1))
    with pytest.raises(fb.InvalidInputError, match=message):
        compare_many(baselines, predict, DATA, **options)


def test_another_data_set_is_refused():
    base = record(model(0.5, 1))
    with pytest.raises(fb.InvalidInputError, match="another data set"):
        compare_many({"a": base}, model(0.5, 2), DATA[:-1])
