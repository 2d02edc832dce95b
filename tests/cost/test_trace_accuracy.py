"""Predicted against measured peak memory of real CPU runs. The whole table: bench/cost/memory_accuracy.py."""

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "cost"
PROMISE = 0.005

# architecture, optimizer, precision, recompute, accumulation
SAMPLE = [
    ("gpt2", "adamw-for-loop", "fp32", False, 1),
    ("llama", "adamw-foreach", "bf16-mixed", True, 2),
    ("mixtral", "sgd-momentum", "bf16-mixed", False, 1),
    ("bert", "adamw-foreach", "bf16-mixed", False, 2),
    ("t5", "adamw-for-loop", "fp32", True, 1),
    ("vit", "sgd-momentum", "bf16-mixed", True, 1),
    ("resnet", "adamw-foreach", "fp32", False, 2),
    ("convnext", "adamw-for-loop", "bf16-mixed", False, 1),
    ("wav2vec2", "adamw-foreach", "fp32", False, 1),
]


@pytest.fixture
def bench(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(BENCH))
    import memory_accuracy
    import transformer_models

    return memory_accuracy, transformer_models


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: "-".join(str(part) for part in case))
def test_prediction_is_within_the_promise(bench, case):
    memory_accuracy, transformer_models = bench
    name, *setting = case
    row = memory_accuracy.run_case(transformer_models.architecture(name), *setting)
    assert abs(row["error"]) <= PROMISE, row


def test_the_sample_names_known_architectures(bench):
    assert {case[0] for case in SAMPLE} <= set(bench[1].NAMES)
    assert len(bench[1].NAMES) >= 30
