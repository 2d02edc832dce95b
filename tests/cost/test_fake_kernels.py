"""Corrected fake kernels return what the real kernels do: the same shapes, strides and types."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fastbudget.cost.trace.fake_kernels import run_fake_kernel
from fastbudget.cost.trace.known_values import KnownValues

aten = torch.ops.aten


def transposed(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).transpose(-1, -2)


CASES = {
    "layer norm of bfloat16": lambda: (
        aten.native_layer_norm.default,
        (torch.randn(4, 8).bfloat16(), [8], torch.ones(8), torch.zeros(8), 1e-5),
    ),
    "layer norm in bfloat16": lambda: (
        aten.native_layer_norm.default,
        (torch.randn(4, 8).bfloat16(), [8], torch.ones(8).bfloat16(), torch.zeros(8).bfloat16(), 1e-5),
    ),
    "layer norm of a strided input": lambda: (
        aten.native_layer_norm.default,
        (transposed(2, 8, 4), [8], torch.ones(8), torch.zeros(8), 1e-5),
    ),
    "layer norm backward of a strided gradient": lambda: (
        aten.native_layer_norm_backward.default,
        (
            transposed(2, 8, 4),
            torch.randn(2, 4, 8),
            [8],
            torch.zeros(2, 4, 1),
            torch.ones(2, 4, 1),
            torch.ones(8),
            torch.zeros(8),
            [True, True, True],
        ),
    ),
    "batch norm of bfloat16": lambda: (
        aten.native_batch_norm.default,
        (
            torch.randn(4, 8, 3, 3).bfloat16(),
            torch.ones(8),
            torch.zeros(8),
            torch.zeros(8),
            torch.ones(8),
            True,
            0.1,
            1e-5,
        ),
    ),
    "group norm of bfloat16": lambda: (
        aten.native_group_norm.default,
        (torch.randn(4, 8, 9).bfloat16(), torch.ones(8), torch.zeros(8), 4, 8, 9, 2, 1e-5),
    ),
    "log-softmax backward of a strided gradient": lambda: (
        aten._log_softmax_backward_data.default,
        (transposed(2, 8, 4), torch.randn(2, 4, 8), -1, torch.float32),
    ),
    "grouped product, rows in groups": lambda: (
        aten._grouped_mm.default,
        (torch.randn(12, 16), torch.randn(3, 16, 32), torch.tensor([4, 8, 12], dtype=torch.int32)),
    ),
    "grouped product, summed in groups": lambda: (
        aten._grouped_mm.default,
        (torch.randn(16, 12), torch.randn(12, 32), torch.tensor([4, 8, 12], dtype=torch.int32)),
    ),
    "connectionist temporal classification": lambda: (
        aten._ctc_loss.Tensor,
        (
            torch.randn(10, 2, 5).log_softmax(-1),
            torch.randint(1, 5, (2, 4)),
            torch.tensor([10, 9]),
            torch.tensor([4, 3]),
        ),
    ),
    "recurrent layer": lambda: (
        aten.mkldnn_rnn_layer.default,
        (
            torch.randn(5, 2, 8),
            torch.randn(64, 8),
            torch.randn(64, 16),
            torch.randn(64),
            torch.randn(64),
            torch.zeros(2, 16),
            torch.zeros(2, 16),
            False,
            [],
            2,
            16,
            1,
            True,
            False,
            False,
            True,
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fake_result_looks_like_the_real_one(name):
    func, args = CASES[name]()
    real = func(*args)
    known = KnownValues()
    mode = FakeTensorMode()
    fake_args = tree_map_only(torch.Tensor, mode.from_tensor, args)
    for fake, given in zip(tree_leaves(fake_args), tree_leaves(args), strict=True):
        if isinstance(given, torch.Tensor) and not given.is_floating_point():
            known.remember(fake, given)
    with mode:
        fake_result = run_fake_kernel(func, fake_args, {}, known)
    assert [description(t) for t in tree_leaves(fake_result)] == [description(t) for t in tree_leaves(real)]


def description(tensor):
    return tuple(tensor.shape), tensor.stride(), tensor.dtype
