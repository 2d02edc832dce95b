"""Products, FLOPs and bytes of single operations in a trace."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastbudget.cost import trace_step


def rows_of(module, inputs, name, **more):
    """Return (product, flops, moved bytes) of each row of an operation in the steady step."""
    settings = {"loss": lambda outputs, batch: outputs.float().mean()} | more
    table = trace_step(module, inputs, **settings).operations
    step = 0 if settings.get("mode") == "infer" else 1
    return [
        (tuple(table.product[i].tolist()), int(table.flops[i]), int(table.moved_bytes[i]))
        for i in range(len(table))
        if table.step[i] == step and table.names[table.name[i]].startswith(f"aten.{name}.")
    ]


def test_linear_layers():
    def inputs():
        return torch.zeros(8, 32)

    assert [row[0] for row in rows_of(lambda: nn.Linear(32, 64), inputs, "addmm")] == [(1, 8, 64, 32)]
    # The gradient of the weight: outputs x inputs over the rows.
    assert [row[0] for row in rows_of(lambda: nn.Linear(32, 64), inputs, "mm")] == [(1, 64, 32, 8)]


@pytest.mark.parametrize(("groups", "channels"), [(1, 16), (4, 16), (16, 16)])
def test_convolutions_and_their_gradients(groups, channels):
    def module():
        return nn.Sequential(nn.Conv2d(3, channels, 1), nn.Conv2d(channels, 32, 3, padding=1, groups=groups))

    def inputs():
        return torch.zeros(2, 3, 8, 8)

    macs = 2 * 8 * 8 * 32 * (channels // groups) * 9
    product = (groups, 2 * 8 * 8, 32 // groups, channels // groups * 9)
    assert rows_of(module, inputs, "convolution")[1][:2] == (product, 2 * macs)
    assert rows_of(module, inputs, "convolution_backward")[0][:2] == (product, 4 * macs)


def test_transposed_convolutions():
    found = rows_of(lambda: nn.ConvTranspose2d(16, 8, 2, stride=2), lambda: torch.zeros(2, 16, 4, 4), "convolution")
    assert found[0][0] == (1, 2 * 8 * 8, 8, 16 * 4)


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.scale * x, x, x, is_causal=self.causal)


@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
@pytest.mark.parametrize(("causal", "seen"), [(False, 64), (True, 32)])
def test_attention_sees_half_of_the_keys_if_causal(kernels, causal, seen):
    def inputs():
        return torch.zeros(2, 4, 64, 32)

    name = (
        "_scaled_dot_product_flash_attention_for_cpu" if kernels == "cpu" else "_scaled_dot_product_efficient_attention"
    )
    for operation in (name, f"{name}_backward"):
        found = rows_of(lambda: Attention(causal), inputs, operation, kernels=kernels)
        assert [row[0] for row in found] == [(8, 64, seen, 32)]


class LastOutput(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


def test_recurrent_layers_count_their_products():
    found = rows_of(lambda: LastOutput(24, 40), lambda: torch.zeros(7, 5, 24), "mkldnn_rnn_layer")
    assert found[0][:2] == ((7, 5, 160, 64), 2 * 7 * 5 * 160 * 64)
    backward = rows_of(lambda: LastOutput(24, 40), lambda: torch.zeros(7, 5, 24), "mkldnn_rnn_layer_backward")
    assert backward[0][1] == 2 * found[0][1]


def test_a_lookup_reads_the_rows_it_returns():
    found = rows_of(lambda: nn.Embedding(1000, 16), lambda: torch.zeros(4, dtype=torch.long), "embedding")
    assert found[0][2] == 4 * 8 + 2 * 4 * 16 * 4
