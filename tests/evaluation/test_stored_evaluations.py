"""Nothing is evaluated twice, and nothing that differs is taken for the same."""

from __future__ import annotations

import json
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastbudget as fb
from fastbudget.evaluation import HashedData, read_record

METRICS = ["accuracy", "f1_macro"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evals.db"


class Interrupted(Exception):
    pass


def test_interrupted_at_900_of_1000_resumes_to_1000(questions: Any, answers: Any, path: Path) -> None:
    data = questions(1000)
    model = answers(data, range(0, 1000, 7))

    def fails_after_900(inputs: Any) -> Any:
        if len(model.asked) == 900:
            raise Interrupted
        return model(inputs)

    with pytest.raises(Interrupted):
        fb.evaluate(fails_after_900, data, METRICS, store=path, model_key="m", batch_size=100)
    assert len(model.asked) == 900
    record = fb.evaluate(model, data, METRICS, store=path, model_key="m", batch_size=100)
    assert record.n == record.N == 1000 and record.num_cached == 900 and len(model.asked) == 1000
    fresh = fb.evaluate(model, data, METRICS)
    assert record.values == fresh.values and record.data_hash == fresh.data_hash
    again = fb.evaluate(model, data, METRICS, store=path, model_key="m", batch_size=37)
    assert len(model.asked) == 2000 and again.num_cached == 1000 and again.values == fresh.values


def test_ten_known_examples_do_not_pass_for_the_set(questions: Any, answers: Any, path: Path) -> None:
    data = questions(200)
    model = answers(data, range(100))
    sample = fb.evaluate(model, data, store=path, model_key="m", tier=fb.Tier(name="ten", num_examples=10))
    assert (sample.n, sample.N, sample.decided) == (10, 200, False)
    full = fb.evaluate(model, data, store=path, model_key="m")
    assert full.n == 200 and full.num_cached == 10 and len(model.asked) == 200 and full["accuracy"].value == 0.5
    with fb.EvaluationStore(path) as store:
        assert [(r.num_examples, r.population_size) for r in store.records()] == [(10, 200), (200, 200)]


def test_another_metric_on_stored_predictions_costs_nothing(questions: Any, answers: Any, path: Path) -> None:
    data = questions(50)
    model = answers(data, [1, 2])
    fb.evaluate(model, data, ["accuracy"], store=path, model_key="m")
    record = fb.evaluate(model, data, ["f1_macro", "precision_macro"], store=path, model_key="m")
    assert len(model.asked) == 50 and record.num_cached == 50
    assert record["f1_macro"] == fb.evaluate(model, data, ["f1_macro"])["f1_macro"]


def small_net(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 3).eval()


@pytest.mark.parametrize("key", [None, "my-model", "module"])
def test_changed_weights_under_the_same_name_miss(questions: Any, path: Path, key: str | None) -> None:
    data, net = questions(40), small_net()

    def predict(inputs: Any) -> Any:
        with torch.no_grad():
            return net(torch.as_tensor(inputs))

    def run() -> fb.EvaluationRecord:
        return fb.evaluate(predict, data, store=path, model_key=net if key == "module" else key, name="my-model")

    first, repeated = run(), run()
    assert (first.num_cached, repeated.num_cached) == (0, 40) and first.model_hash == repeated.model_hash
    with torch.no_grad():
        net.weight += 1.0
    changed = run()
    assert changed.num_cached == 0 and changed.model_hash != first.model_hash


def test_what_predict_does_counts_too(questions: Any, path: Path) -> None:
    data, net = questions(40), small_net()

    def scaled(factor: float) -> Any:
        return lambda inputs: factor * net(torch.as_tensor(inputs)).detach()

    hashes = {
        name: fb.evaluate(predict, data, store=path).model_hash
        for name, predict in {
            "plain": lambda inputs: net(torch.as_tensor(inputs)).detach(),
            "other code": lambda inputs: net(torch.as_tensor(inputs) * 2).detach(),
            "1": scaled(1.0),
            "-1": scaled(-1.0),
        }.items()
    }
    assert len(set(hashes.values())) == 4
    assert fb.evaluate(scaled(1.0), data, store=path).num_cached == 40
    examples = [(torch.from_numpy(inputs), reference) for inputs, reference in data]
    assert fb.evaluate(net, examples, store=path).model_hash == fb.store.hash_model(net)


def test_weights_in_another_module_or_class_count_too(questions: Any, path: Path) -> None:
    library = types.ModuleType("my_models")
    library.net, library.number = small_net(), 1  # type: ignore[attr-defined]
    table = {0.0: 1.0}
    known = table.get

    class Settings:
        threshold = 0.5

    @torch.no_grad()
    def predict(inputs: Any) -> Any:
        return library.net(torch.as_tensor(inputs)) * Settings.threshold + known(0.0, 0.0)

    data = questions(40)
    baseline = fb.evaluate(predict, data, store=path)
    library.number = 2  # type: ignore[attr-defined]
    assert fb.evaluate(predict, data, store=path).num_cached == 40
    hashes = {baseline.model_hash}
    for change in (
        lambda: library.net.weight.data.neg_(),
        lambda: setattr(Settings, "threshold", 0.25),
        lambda: table.update({0.0: 2.0}),
    ):
        change()
        record = fb.evaluate(predict, data, store=path)
        assert record.num_cached == 0
        hashes.add(record.model_hash)
    assert len(hashes) == 4
    assert fb.compare(baseline, predict, data).num_predicted > 0


def test_training_mode_is_told_and_its_results_are_not_those_of_evaluation_mode(questions: Any, path: Path) -> None:
    data = [(torch.from_numpy(inputs), reference) for inputs, reference in questions(40)]
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)).train()
    with pytest.warns(UserWarning, match=r"training mode \(Dropout\)"):
        baseline = fb.evaluate(net, data, store=path)
    assert fb.evaluate(net.eval(), data, store=path).num_cached == 0
    assert fb.compare(baseline, net, data).num_predicted > 0


@pytest.mark.filterwarnings("error")
def test_a_predict_that_switches_the_mode_itself_is_no_cause_to_warn(questions: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).train()
    fb.evaluate(lambda inputs: net.eval()(torch.as_tensor(inputs)).detach(), questions(10))
    job = types.SimpleNamespace(trained=torch.nn.Dropout(0.5).train(), scale=2.0)
    fb.evaluate(lambda inputs: net(torch.as_tensor(inputs)).detach() * job.scale, questions(10))


def test_a_model_without_a_defined_value_is_recorded(path: Path) -> None:
    data = [(float(index), float(index % 3)) for index in range(30)]
    record = fb.evaluate(lambda inputs: np.zeros(len(inputs)), data, ["pearson"], store=path, model_key="constant")
    with fb.EvaluationStore(path) as store:
        assert record.store_id is not None
        assert np.isnan(read_record(store, record.store_id)["pearson"].value) and np.isnan(record["pearson"].value)


def test_a_record_of_a_metric_of_the_whole_set_comes_back(questions: Any, answers: Any, path: Path) -> None:
    data = questions(40)
    record = fb.evaluate(answers(data, range(10)), data, ["f1_macro"], store=path, model_key="m")
    with fb.EvaluationStore(path) as store:
        assert record.store_id is not None
        back = read_record(store, record.store_id)
        assert back == record and back.examples is not None and back.examples.scores == {}


def test_a_metric_that_has_read_texts_keeps_its_key(path: Path) -> None:
    data = [(text, [text, "another reference of it"]) for text in ("the cat sat on the mat", "a dog ran in the park")]
    metric = fb.metrics.get("bleu")
    records = [
        fb.evaluate(lambda inputs: list(inputs), data, [metric], store=path, model_key="m", collate=list)
        for _ in range(2)
    ]
    assert records[0].examples.signatures == records[1].examples.signatures  # type: ignore[union-attr]
    with fb.EvaluationStore(path) as store:
        columns = store.columns(str(records[0].model_hash))
    assert [name for name in columns if name.startswith("nrefs")] == [
        "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
    ]
    assert "nrefs:2" in metric.signature


def test_a_model_that_cannot_be_told_needs_a_key(questions: Any, path: Path) -> None:
    session = object()
    with pytest.raises(fb.InvalidInputError, match="model_key"):
        fb.evaluate(lambda inputs: (session, np.zeros((len(inputs), 3)))[1], questions(4), store=path)
    assert fb.evaluate(lambda inputs: (session, np.zeros((len(inputs), 3)))[1], questions(4)).model_hash is None


def test_changed_examples_and_preprocessing_miss(questions: Any, answers: Any, path: Path) -> None:
    data = questions(30)
    model = answers(data, [])

    def run(**options: Any) -> int:
        return fb.evaluate(model, data, store=path, model_key="m", **options).num_cached

    assert [run(), run(), run(preprocessing="resize 224"), run(preprocessing="resize 224")] == [0, 30, 0, 30]
    data.inputs[4, 1] += 1e-3
    data.references[5] = (data.references[5] + 1) % 3
    assert run() == 28


def test_ranks_share_a_store_and_their_padding_counts_once(questions: Any, answers: Any, path: Path) -> None:
    data = questions(10)
    model = answers(data, [3])
    shares = []
    for rank in range(3):  # each rank its own loader, as a DistributedSampler pads it: 12 indices in all
        indices = [(rank + 3 * step) % 10 for step in range(4)]
        part = torch.utils.data.Subset(data, indices)
        shares.append(fb.evaluate(model, part, store=path, model_key="m").n)
    assert sum(shares) == 12
    whole = fb.evaluate(model, data, store=path, model_key="m")
    assert whole.n == 10 and whole.num_cached == 10 and whole["accuracy"].value == 0.9
    asked = len(model.asked)
    for rank in range(4):
        share = fb.evaluate(model, data, store=path, model_key="n", shard=(rank, 4))
        assert share.stop_reason == "shard" and not share.decided and share.N == 10
    assert len(model.asked) == asked + 10
    assert fb.evaluate(model, data, store=path, model_key="n").values == whole.values


def test_ids_named_twice(questions: Any, answers: Any) -> None:
    data = questions(10)
    padded = [data[index] for index in (*range(10), 0, 1)]

    class WithIds(list[Any]):
        ids = (*range(10), 0, 1)

    record = fb.evaluate(answers(data, [0]), WithIds(padded))
    assert (record.n, record.N, record.num_duplicates, record["accuracy"].value) == (10, 10, 2, 0.9)
    padded[11] = data[2]
    with pytest.raises(fb.InvalidInputError, match="names 1 twice"):
        fb.evaluate(answers(data, [0]), WithIds(padded))
    WithIds.ids = range(3)  # type: ignore[assignment]
    with pytest.raises(fb.InvalidInputError, match="got 3 for 12"):
        fb.evaluate(answers(data, [0]), WithIds(padded))


def test_records_come_back_from_the_store(questions: Any, answers: Any, path: Path) -> None:
    data = questions(60)
    record = fb.evaluate(answers(data, [5, 6]), data, METRICS, store=path, model_key="m", name="net")
    sample = fb.evaluate(
        answers(data, [5, 6]), data, METRICS, store=path, model_key="m", tier=fb.Tier(name="s", num_examples=20)
    )
    with fb.EvaluationStore(path) as store:
        assert store.record(record.store_id).name == "net"
        json.dumps(store.record(record.store_id).to_json())
        for written in (record, sample):
            read = read_record(store, written.store_id)
            assert read == written
            for name in ("accuracy",):
                assert read.examples.scores[name].tolist() == written.examples.scores[name].tolist() or (
                    sorted(read.examples.scores[name]) == sorted(written.examples.scores[name])
                )
            assert read.examples.margins is not None
        store.forget(str(record.model_hash))
        with pytest.raises(fb.InvalidInputError, match="evaluate the model again"):
            read_record(store, record.store_id)


def test_values_of_large_predictions_are_kept_without_them(path: Path) -> None:
    generator = np.random.default_rng(0)
    logits, targets = generator.normal(size=(8, 5, 300)).astype(np.float32), generator.integers(0, 300, (8, 5))

    class Documents:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return index, targets[index]

    data = Documents()

    def predict(inputs: Any) -> Any:
        return logits[inputs]

    first = fb.evaluate(predict, data, ["token_accuracy"], store=path, model_key="m")
    with fb.EvaluationStore(path) as store:
        columns = store.columns(str(first.model_hash))
    assert "prediction" not in columns
    second = fb.evaluate(predict, data, ["token_accuracy"], store=path, model_key="m")
    assert second["token_accuracy"] == first["token_accuracy"]


@pytest.mark.parametrize("workers", [1, 3])
def test_results_count_in_draw_order_whatever_the_executor(questions: Any, answers: Any, workers: int) -> None:
    import time

    data = questions(300)
    model = answers(data, range(0, 300, 9))

    def uneven(inputs: Any) -> Any:
        time.sleep(0.02 * (len(model.sizes) % 3 == 0))
        return model(inputs)

    expected = fb.evaluate(model, data, tier=fb.Tier(name="t", num_examples=200), batch_size=20)
    expected_stop = fb.evaluate(model, data, thresholds={"accuracy": 0.5}, batch_size=20)
    with ThreadPoolExecutor(workers) as pool:
        found = fb.evaluate(uneven, data, tier=fb.Tier(name="t", num_examples=200), batch_size=20, executor=pool)
        assert found.values == expected.values
        assert (found.examples.hashes == expected.examples.hashes).all()
        stopped = fb.evaluate(uneven, data, thresholds={"accuracy": 0.5}, batch_size=20, executor=pool)
        assert (stopped.n, stopped.values) == (expected_stop.n, expected_stop.values)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_halves_the_batch_and_goes_on(questions: Any, answers: Any, error: Exception) -> None:
    data = questions(100)
    model = answers(data, [7])
    tried = []

    def small_memory(inputs: Any) -> Any:
        tried.append(len(inputs))
        if len(inputs) > 12:
            raise error
        return model(inputs)

    record = fb.evaluate(small_memory, data, batch_size=40)
    assert record.n == 100 and record["accuracy"].value == 0.99
    assert tried[:3] == [40, 20, 10] and max(tried[3:]) <= 10  # learnt once
    with pytest.raises(type(error)):
        fb.evaluate(lambda inputs: (_ for _ in ()).throw(error), data)


def test_other_errors_pass_through(questions: Any) -> None:
    with pytest.raises(RuntimeError, match="shape"):
        fb.evaluate(lambda inputs: (_ for _ in ()).throw(RuntimeError("shape mismatch")), questions(5))


def test_nan_scores(questions: Any, answers: Any, path: Path) -> None:
    data = questions(20)
    model = answers(data, [])
    model.scores[[3, 11]] = np.nan
    with pytest.raises(fb.InvalidInputError, match=r"NaN.*nan='wrong'"):
        fb.evaluate(model, data)
    record = fb.evaluate(model, data, METRICS, nan="wrong", store=path, model_key="m")
    assert record.num_nan == 2 and record["accuracy"].value == 0.9 and record.to_json()["num_nan"] == 2
    resumed = fb.evaluate(model, data, METRICS, nan="wrong", store=path, model_key="m")
    assert resumed.num_nan == 2 and resumed.values == record.values and resumed.num_cached == 20
    with pytest.raises(fb.InvalidInputError, match="NaN"):
        fb.evaluate(model, data, METRICS, store=path, model_key="m")
    with pytest.raises(fb.InvalidInputError, match="defined for class scores"):
        fb.evaluate(lambda x: np.full(len(x), np.nan), [(np.zeros(1), 0.5)], ["mae"], nan="wrong")


def test_nan_scores_too_large_to_keep_are_remembered(path: Path) -> None:
    # 2,000 float32 scores per example aren't kept; what was counted as wrong must still be known as such.
    data = [(np.float32(index), index) for index in range(20)]
    asked = []

    def model(inputs: Any) -> Any:
        asked.append(len(inputs))
        scores = np.eye(2000, dtype=np.float32)[inputs.astype(int)]
        scores[inputs == 7] = np.nan
        return scores

    first = fb.evaluate(model, data, nan="wrong", store=path, model_key="m")
    again = fb.evaluate(model, data, nan="wrong", store=path, model_key="m")
    assert first.num_nan == again.num_nan == 1 and first["accuracy"].value == again["accuracy"].value == 0.95
    with pytest.raises(fb.InvalidInputError, match=r"example 7 .* counted as wrong"):
        fb.evaluate(model, data, store=path, model_key="m")
    assert sum(asked) == 20  # the model was run once


@pytest.mark.parametrize("data", [None, 5])
def test_data_must_be_data(data: Any) -> None:
    with pytest.raises(fb.InvalidInputError, match="data must be a re-iterable of batches"):
        fb.evaluate(lambda inputs: inputs, data)


def test_what_predict_returns_is_checked(questions: Any) -> None:
    for returned, message in (
        (np.zeros((3, 3)), "same length"),
        (None, "one prediction per example"),
        (0.5, "one pred"),
    ):
        with pytest.raises(fb.InvalidInputError, match=message):
            fb.evaluate(lambda inputs, returned=returned: returned, questions(5))


def test_hashes_are_computed_once_and_checked(questions: Any, answers: Any) -> None:
    raw = questions(200)
    data = HashedData(raw)
    reads = raw.reads
    tier = fb.Tier(name="t", num_examples=20)
    assert (
        fb.evaluate(answers(raw, []), data, tier=tier).data_hash
        == fb.evaluate(answers(raw, []), raw, tier=tier).data_hash
    )
    assert raw.reads == reads + 20 + 220
    raw.inputs[:, 1] += 1
    with pytest.raises(fb.InvalidInputError, match="data changed"):
        fb.evaluate(answers(raw, []), data, tier=tier)


def test_examples_without_content_can_be_evaluated_but_not_stored(path: Path) -> None:
    data = [(object(), index % 2) for index in range(6)]
    record = fb.evaluate(lambda inputs: np.eye(2)[[0] * len(inputs)], data)
    assert record["accuracy"].value == 0.5 and record.examples is None and record.data_hash is None
    with pytest.raises(fb.InvalidInputError, match="content has a hash"):
        fb.evaluate(lambda inputs: np.eye(2)[[0] * len(inputs)], data, store=path, model_key="m")
    with pytest.raises(fb.InvalidInputError, match="no hash"):
        fb.evaluate(lambda inputs: np.eye(2)[[0] * len(inputs)], data, tier=fb.Tier(name="t", num_examples=2))
