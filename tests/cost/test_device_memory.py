"""``fb.estimate`` on a named GPU: the four numbers, the verdict, sharding and the largest micro-batch."""

import pytest
import torch
from torch import nn

import fastbudget as fb
from fastbudget.cost.batch_search import largest_batch
from fastbudget.hardware import find_device

WIDTH, LAYERS = 256, 4


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x).float().pow(2).mean()


LAYER_BYTES = 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)
PARAM_BYTES = LAYERS * LAYER_BYTES + 4 * (WIDTH * 8 + 8)


def rows(count=64):
    return torch.zeros(count, WIDTH)


def on_gpu(**options):
    return fb.estimate(Blocks(), rows(), **{"hardware": "a100-80gb", "precision": "fp32", **options}).memory


def test_the_four_numbers_are_ordered_and_the_capacity_is_the_device_s():
    memory = on_gpu()
    assert sum(memory.by_category.values()) <= memory.allocated_bytes  # rounded blocks and cuBLAS's workspace
    assert memory.allocated_bytes <= memory.active_bytes <= memory.reserved_bytes < memory.device_bytes
    assert memory.reserved_bytes % 2**21 == 0
    assert memory.capacity_bytes == find_device("a100-80gb").memory_bytes
    assert (memory.fits, memory.margin) == ("yes", 0.10)


def test_a_gpu_without_a_name_has_no_verdict():
    memory = on_gpu(hardware="cuda")
    assert memory.reserved_bytes and memory.fits is memory.capacity_bytes is memory.largest_micro_batch is None


def test_the_verdict_turns_from_yes_over_at_risk_to_no():
    verdicts = [on_gpu_of(size).fits for size in (70_000, 1_900_000, 2_400_000)]
    assert verdicts == ["yes", "at risk", "no"]


def on_gpu_of(size):
    return fb.estimate(Blocks(), lambda: torch.zeros(size, WIDTH), hardware="a100-80gb", precision="fp32").memory


def test_the_largest_tensors_name_the_module_that_owns_them():
    owned = [tensor for tensor in on_gpu().largest_at_peak if tensor.category in ("parameter", "optimizer_state")]
    assert owned and all(tensor.module.split(".")[0] in ("layers", "head") for tensor in owned)


def test_sharding_divides_what_its_stage_says_and_adds_what_it_needs():
    whole = on_gpu().by_category
    shards = {stage: on_gpu(num_devices=4, sharding=stage).by_category for stage in ("none", "zero1", "zero2", "zero3")}
    assert whole["parameter"] == PARAM_BYTES
    assert shards["none"]["parameter"] == whole["parameter"]
    assert shards["none"]["buffer"] >= whole["buffer"] + PARAM_BYTES  # DDP's buckets
    for stage in ("zero1", "zero2", "zero3"):
        assert shards[stage]["optimizer_state"] == pytest.approx(whole["optimizer_state"] / 4, rel=1e-3)
    assert shards["zero1"]["gradient"] == whole["gradient"]
    assert shards["zero2"]["gradient"] == pytest.approx(whole["gradient"] / 4, rel=1e-3)
    assert shards["zero2"]["parameter"] == whole["parameter"]
    assert shards["zero3"]["parameter"] == pytest.approx(whole["parameter"] / 4, rel=1e-3)
    assert shards["zero3"]["buffer"] == whole["buffer"] + 3 * LAYER_BYTES
    assert shards["zero3"]["activation"] == whole["activation"]


def test_offloaded_states_cost_no_device_memory():
    memory = on_gpu(offload="optimizer")
    assert memory.by_category["optimizer_state"] == 0 and any("host" in note for note in memory.notes)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"hardware": "h10"}, "hardware must be 'cpu', 'cuda' or an accelerator's name.*Did you mean 'h"),
        ({"sharding": "zero4"}, "sharding must be one of.*Did you mean 'zero3'|sharding must be one of"),
        ({"num_devices": 0}, "num_devices must be a whole number of at least 1, got 0"),
        ({"tensor_parallel": 2}, "tensor_parallel must be 1 for a traced module.*estimate_transformer"),
        ({"offload": "everything"}, "offload must be one of"),
    ],
)
def test_arguments_that_make_no_sense_are_named(options, expected):
    with pytest.raises(fb.InvalidInputError, match=expected):
        on_gpu(**options)


def test_a_frozen_model_has_no_training_step():
    with pytest.raises(fb.InvalidInputError, match=r"no trainable parameter.*mode='infer'"):
        fb.estimate(Blocks().requires_grad_(False), rows(), hardware="cpu", precision="fp32")
    assert fb.estimate(Blocks().requires_grad_(False), rows(), hardware="cpu", precision="fp32", mode="infer")


def test_a_configuration_object_of_transformers_is_taken_as_it_is():
    transformers = pytest.importorskip("transformers")
    options = {"seq_len": 64, "global_batch_size": 1, "hardware": "h100"}
    config = transformers.LlamaConfig(num_hidden_layers=2)
    assert fb.estimate_transformer(config, **options) == fb.estimate_transformer(config.to_dict(), **options)


def test_sizes_beyond_int64_are_refused():
    with pytest.raises(fb.InvalidInputError, match=r"int64|allocates more"):
        fb.estimate_transformer("llama-7b", seq_len=10**15, global_batch_size=1, hardware="h100")


def test_the_largest_micro_batch_fits_and_one_more_does_not():
    small = fb.estimate(Blocks(), lambda: torch.zeros(8, 512, WIDTH), hardware="t4", precision="fp32").memory
    largest = small.largest_micro_batch

    def verdict(samples):
        batch = lambda: torch.zeros(samples, 512, WIDTH)  # noqa: E731
        return fb.estimate(Blocks(), batch, hardware="t4", precision="fp32").memory.fits

    assert largest > 8 and verdict(largest) != "no" and verdict(largest + 1) == "no"


@pytest.mark.parametrize("start", [1, 7, 64])
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 63, 64, 65, 1000])
def test_the_search_finds_any_limit_from_anywhere(start, limit):
    assert largest_batch(lambda samples: samples <= limit, start) == limit


def test_the_search_ends_where_more_gains_nothing():
    assert largest_batch(lambda samples: True, 3) >= 2**15
