"""``fb.estimate``: memory and operations of a step, on the CPU and as CUDA would run it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fastbudget as fb
from fastbudget.cost import trace_step

BATCH, HEADS, LENGTH, HEAD = 2, 4, 64, 32
WIDTH = HEADS * HEAD


class Attention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)
        self.dropout = dropout

    def forward(self, x):
        q, k, v = self.projection(x).view(BATCH, LENGTH, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return mixed.float().pow(2).mean()


def sequences():
    return torch.randn(BATCH, LENGTH, WIDTH)


def names_in(trace):
    return set(trace.operations.names)


def test_estimate_adds_up():
    estimate = fb.estimate(Attention, sequences, hardware="cpu", precision="fp32")
    memory = estimate.memory
    assert sum(memory.by_category.values()) == memory.allocated_bytes
    assert memory.timeline.total_bytes.max() == memory.allocated_bytes
    assert memory.timeline.total_bytes[memory.timeline.event_at_peak] == memory.allocated_bytes
    sizes = [tensor.size_bytes for tensor in memory.largest_at_peak]
    assert sizes == sorted(sizes, reverse=True)
    assert estimate.num_params == 3 * WIDTH * (WIDTH + 1)
    attention = 4 * BATCH * HEADS * LENGTH * LENGTH * HEAD
    assert estimate.forward_flops == 2 * BATCH * LENGTH * WIDTH * 3 * WIDTH + attention
    assert estimate.step_flops > 2 * estimate.forward_flops


def test_unknown_memory_is_none():
    memory = fb.estimate(Attention, sequences, hardware="cpu").memory
    assert memory.active_bytes is memory.reserved_bytes is memory.device_bytes is None


def test_accumulation_multiplies_operations_only():
    once = fb.estimate(Attention, sequences, hardware="cpu")
    twice = fb.estimate(Attention, sequences, hardware="cpu", grad_accumulation=2)
    assert twice.step_flops == 2 * once.step_flops
    assert twice.memory.allocated_bytes < 1.5 * once.memory.allocated_bytes


def test_inference_has_no_backward_pass():
    estimate = fb.estimate(Attention, sequences, hardware="cpu", mode="infer")
    assert estimate.step_flops == estimate.forward_flops
    assert estimate.memory.by_category["gradient"] == estimate.memory.by_category["optimizer_state"] == 0


@pytest.mark.parametrize(
    ("precision", "kernel"),
    [
        ("bf16-mixed", "aten._scaled_dot_product_flash_attention.default"),
        ("fp32", "aten._scaled_dot_product_efficient_attention.default"),
    ],
)
def test_cuda_attention_is_one_kernel(precision, kernel):
    trace = trace_step(lambda: Attention(0.1), sequences, precision=precision, kernels="cuda")
    assert kernel in names_in(trace)
    assert "aten._softmax.default" not in names_in(trace)
    # The CPU has no attention kernel with dropout and falls back to explicit math.
    assert "aten._safe_softmax.default" in names_in(trace_step(lambda: Attention(0.1), sequences))


def test_cuda_dropout_keeps_one_byte_an_element():
    def model():
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH))

    def loss(outputs, batch):
        return outputs.pow(2).mean()

    elements = BATCH * LENGTH * WIDTH
    sizes = {}
    for kernels in ("cpu", "cuda"):
        log = trace_step(model, sequences, loss=loss, kernels=kernels).log
        sizes[kernels] = log.bytes_by_category(log.event_at_peak)["activation"]
    assert sizes["cpu"] - sizes["cuda"] == 3 * elements


def test_cuda_autocast_normalizes_in_float32():
    def model():
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))

    def dtypes(kernels):
        table = trace_step(
            model, sequences, loss=lambda o, b: o.float().mean(), precision="bf16-mixed", kernels=kernels
        ).operations
        return {
            table.dtypes[table.dtype[i]]
            for i in range(len(table))
            if table.names[table.name[i]] == "aten.native_layer_norm.default"
        }

    assert dtypes("cuda") == {"float32"}
    assert dtypes("cpu") == {"bfloat16"}


def test_8bit_states_are_a_quarter():
    def states(optimizer):
        memory = fb.estimate(Attention, sequences, hardware="cuda", precision="fp32", optimizer=optimizer).memory
        return memory.by_category["optimizer_state"]

    full, small = states("adamw"), states("adamw-8bit")
    assert 0.25 < small / full < 0.30


def test_unknown_hardware():
    with pytest.raises(fb.InvalidInputError, match="Did you mean 'cuda'"):
        fb.estimate(Attention, sequences, hardware="cuda:0")
