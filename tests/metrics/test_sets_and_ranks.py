"""Several metrics in one pass, states over ranks and processes."""

import multiprocessing
import os

import numpy as np
import pytest
import torch

import fastbudget as fb
from fastbudget.metrics import _native, label_counts


def test_a_set_gives_what_its_metrics_give_alone():
    generator = np.random.default_rng(0)
    references = generator.integers(0, 4, 200)
    scores = generator.dirichlet(np.ones(4), 200)
    names = ["accuracy", "f1_macro", "precision_micro", "mcc", "log_loss", "auroc", "top_k_accuracy"]
    metrics = fb.metrics.MetricSet(names)
    alone = {name: fb.metrics.get(name)(scores, references) for name in names}
    assert metrics(scores, references) == pytest.approx(alone)
    parts = [metrics.update(metrics.init(), scores[p], references[p]) for p in (slice(0, 77), slice(77, 200))]
    merged = metrics.merge(*parts)
    assert metrics.result(merged) == pytest.approx(alone)
    values = metrics.interval(merged)
    assert all(value.low <= value.value <= value.high for value in values.values())
    assert set(metrics.per_example(scores, references)) == {"accuracy", "log_loss", "top_k_accuracy"}


def test_shared_input_is_read_tokenized_and_counted_once(monkeypatch):
    calls = []
    tokenize, read = _native.tokenize, label_counts.read_labels
    monkeypatch.setattr(_native, "tokenize", lambda *a, **k: calls.append("tokenize") or tokenize(*a, **k))
    fb.metrics.MetricSet(["rouge1", "rouge2", "rougeL"])(["a b c"], ["a b d"])
    assert calls == ["tokenize"]
    from fastbudget.metrics import classification

    monkeypatch.setattr(classification, "read_labels", lambda *a: calls.append("read") or read(*a))
    metrics = fb.metrics.MetricSet(["accuracy", "f1_macro", "mcc"])
    states = metrics.update(metrics.init(), [0, 1], [0, 1])
    assert calls == ["tokenize", "read"] and len(states) == 1


def test_presets_cover_the_tasks_and_names_are_checked():
    assert fb.metrics.preset("classification")([0, 1], [0, 1])["f1_macro"] == 1.0
    assert set(fb.metrics.preset("summarization")(["a"], ["a"])) >= {"rouge1", "rouge2", "rougeL", "rougeLsum"}
    assert fb.metrics.preset("text_generation")(["a b c d"], ["a b c d"])["bleu"] == pytest.approx(1.0)
    assert "perplexity" in fb.metrics.preset("language_modeling")(np.zeros((1, 2, 3)), [[0, 1]])
    with pytest.raises(fb.InvalidInputError, match="Did you mean 'summarization'"):
        fb.metrics.preset("summarisation")
    with pytest.raises(fb.InvalidInputError, match="list of names"):
        fb.metrics.MetricSet("accuracy")
    with pytest.raises(fb.InvalidInputError, match="called 'accuracy'"):
        fb.metrics.MetricSet(["accuracy", "accuracy"])
    with pytest.raises(fb.InvalidInputError, match="at least one"):
        fb.metrics.MetricSet([])


class Length(fb.metrics.Metric):
    """A metric of a user's own, with no more than the protocol."""

    def init(self):
        return 0

    def update(self, state, predictions, references, ids=None):
        return state + len(predictions)

    def merge(self, a, b):
        return a + b

    def result(self, state):
        return state

    def interval(self, state, confidence=0.95, groups=None):
        raise NotImplementedError


def test_a_metric_of_ones_own_goes_into_a_set():
    metrics = fb.metrics.MetricSet({"mine": Length(), "accuracy": fb.metrics.get("accuracy")})
    assert metrics([0, 1], [0, 0]) == {"mine": 2, "accuracy": 0.5}
    assert Length().signature == "Length|version:1"


def in_rank(rank, world_size, port, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)
    metrics = fb.metrics.MetricSet(["accuracy", "f1_macro", "log_loss"])
    scores, references = data()
    mine = np.arange(rank, 12, world_size) % 10  # a sampler that fills up the last batch
    states = metrics.update(metrics.init(), scores[mine], references[mine], ids=mine)
    merged = fb.metrics.merge_ranks(metrics, states)
    queue.put((rank, metrics.result(merged)))
    torch.distributed.destroy_process_group()


def data():
    generator = np.random.default_rng(5)
    return generator.dirichlet(np.ones(3), 10), generator.integers(0, 3, 10)


def test_states_merge_over_ranks_of_gloo():
    context = multiprocessing.get_context("fork")  # torch is imported already
    queue = context.Queue()
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [context.Process(target=in_rank, args=(rank, 2, port, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    results = dict(queue.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(30)
        assert process.exitcode == 0
    scores, references = data()
    expected = fb.metrics.MetricSet(["accuracy", "f1_macro", "log_loss"])(scores, references)
    assert results == {rank: pytest.approx(expected) for rank in range(2)}


def test_alone_the_state_stays_itself():
    metric = fb.metrics.get("accuracy")
    state = metric.init()
    assert fb.metrics.merge_ranks(metric, state) is state
