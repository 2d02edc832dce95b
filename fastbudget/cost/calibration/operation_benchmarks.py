"""The operations that a calibration measures, with the sizes it measures them at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..trace.operation_cost import operation_bytes, product_shape
from .tensor_pool import TensorPool

aten = torch.ops.aten
Call = tuple[Any, tuple[Any, ...]]

# Places each operation is measured at in turn.
_VARIANTS, _VARIANTS_QUICK = 6, 3
# Elements of each tensor: in the first-level cache, in the last-level one, in memory.
_ELEMENTS = (2**12, 2**16, 2**19, 2**22)
_ELEMENTS_QUICK = (2**12, 2**19)
_ROW = 256

# (m, n, k): tokens against weights, weights against weights over tokens, single rows, narrow outputs.
_PRODUCTS = (
    *((m, n, k) for m in (1, 16, 128, 1024) for n in (64, 256, 1024) for k in (64, 256, 1024)),
    (256, 1024, 4096), (1024, 256, 4096), (64, 64, 4096), (128, 2048, 2048), (2048, 2048, 128), (2048, 2048, 1024),
    (1, 4096, 1024), (4096, 64, 64), (512, 4096, 256), (512, 256, 4096), (16, 8, 256), (512, 10, 1024), (10, 1024, 512),
    (1024, 1024, 16), (256, 256, 16), (4096, 256, 256),
)  # fmt: skip
_PRODUCTS_QUICK = (
    (16, 64, 64),
    (16, 1024, 1024),
    (256, 256, 256),
    (1024, 256, 1024),
    (1024, 1024, 256),
    (1, 1024, 1024),
)
# (batch, m, n, k): attention's products, spelled out.
_BATCHED_PRODUCTS = (
    (8, 32, 32, 32), (8, 32, 32, 64), (16, 128, 128, 64), (16, 128, 64, 128), (32, 64, 128, 128), (64, 128, 128, 32),
    (8, 512, 512, 64), (8, 512, 64, 512), (4, 1024, 1024, 128), (64, 1, 256, 64), (64, 1, 64, 256), (8, 256, 1024, 256),
)  # fmt: skip
# (samples, channels in, channels out, kernel, size of the image, stride, groups)
_CONVOLUTIONS = (
    (4, 3, 32, 7, 64, 2, 1), (16, 3, 64, 7, 64, 2, 1), (16, 3, 64, 3, 32, 1, 1), (4, 3, 32, 3, 64, 2, 1),
    (4, 32, 32, 3, 16, 1, 1), (32, 32, 32, 3, 16, 1, 1), (8, 64, 64, 3, 32, 1, 1), (16, 64, 128, 3, 16, 2, 1),
    (4, 128, 128, 3, 8, 1, 1), (32, 128, 128, 3, 8, 1, 1), (16, 128, 256, 3, 8, 1, 1), (4, 256, 256, 3, 4, 1, 1),
    (32, 256, 256, 3, 4, 1, 1), (8, 256, 256, 3, 14, 1, 1), (16, 32, 64, 1, 32, 1, 1), (16, 128, 128, 1, 16, 1, 1),
    (8, 256, 64, 1, 16, 1, 1), (16, 256, 512, 1, 8, 1, 1), (8, 3, 192, 8, 64, 8, 1), (16, 32, 32, 3, 32, 1, 32),
    (16, 128, 128, 3, 16, 1, 128), (16, 256, 256, 3, 8, 1, 256), (4, 64, 64, 3, 8, 1, 1), (4, 128, 128, 3, 4, 1, 1),
    (4, 256, 256, 3, 2, 1, 1), (4, 128, 256, 3, 4, 2, 1), (32, 256, 256, 3, 2, 1, 1), (4, 32, 64, 1, 16, 2, 1),
)  # fmt: skip
_CONVOLUTIONS_QUICK = (
    (4, 3, 32, 3, 64, 2, 1),
    (4, 32, 32, 3, 16, 1, 1),
    (4, 128, 128, 3, 8, 1, 1),
    (4, 64, 64, 3, 16, 1, 64),
)
# (batch, heads, queries, keys, size of a head, causal)
_ATTENTIONS = (
    (2, 2, 32, 32, 32, True), (1, 4, 64, 64, 64, True), (4, 8, 128, 128, 32, True), (4, 4, 128, 128, 64, False),
    (16, 3, 65, 65, 64, False), (4, 8, 256, 256, 32, True), (4, 8, 256, 256, 64, True), (2, 4, 512, 512, 64, False),
    (1, 8, 512, 512, 32, True), (1, 8, 1024, 1024, 64, True), (1, 8, 512, 512, 128, True), (8, 8, 1, 256, 64, False),
)  # fmt: skip
_ATTENTIONS_QUICK = ((2, 2, 64, 64, 32, True), (2, 4, 256, 256, 64, True))
# (length, batch, width), as wide inside
_RECURRENT = ((32, 1, 64), (64, 4, 256), (32, 16, 128), (64, 16, 256), (64, 64, 256), (32, 16, 512))
_RECURRENT_QUICK = ((32, 4, 64), (32, 16, 256))
# (rows, width, rows looked up)
_EMBEDDINGS = ((1024, 64, 64), (2048, 256, 512), (20_000, 32, 1024), (100_000, 32, 256))


@dataclass(frozen=True, kw_only=True)
class OperationBenchmark:
    """One operation at one size.

    Attributes:
        operation: its name without the overload, such as ``"mm"``.
        dtype: of its first output.
        product: batch, m, n and k of its matrix products; None where it has none.
        moved_bytes: read and written.
        call: runs it once.
    """

    operation: str
    dtype: str
    product: tuple[int, int, int, int] | None
    moved_bytes: int
    call: Callable[[], Any]


def operation_benchmarks(
    pool: TensorPool, dtypes: Sequence[torch.dtype], *, quick: bool
) -> Iterator[OperationBenchmark]:
    """Yield every benchmark, each operation's in a row; the same pool serves all.

    Args:
        pool: tensors to run them on; each benchmark may overwrite those of the others.
        dtypes: floating-point types to measure.
        quick: a few sizes of each operation, for about a second.
    """
    variants = _VARIANTS_QUICK if quick else _VARIANTS
    for dtype in dtypes:
        for group in _groups(pool, dtype, quick):
            for alike in zip(*(group() for _ in range(variants)), strict=True):
                made = _benchmark(pool, alike[0][0], [args for _, args in alike])
                if made is not None:
                    yield made


def _benchmark(pool: TensorPool, func: Any, variants: list[tuple[Any, ...]]) -> OperationBenchmark | None:
    """Run the operation once, to warm it up and to learn what it reads and writes; None if it can't run here.

    Calls go through the variants, the same shapes in other places, and keep some results: neither operands nor
    results are then in the nearest cache, as in a step.
    """
    args = variants[0]
    try:
        out = func(*args)
    except (RuntimeError, NotImplementedError):
        return None
    inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    shape = product_shape(func, args, {}, out)
    following = cycle(variants)
    return OperationBenchmark(
        operation=func.overloadpacket.__name__,
        dtype=str(outputs[0].dtype).removeprefix("torch."),
        product=shape if all(shape) else None,
        moved_bytes=operation_bytes(func, inputs, outputs),
        call=lambda: pool.keep(func(*next(following))),
    )


def _groups(pool: TensorPool, dtype: torch.dtype, quick: bool) -> Iterator[Callable[[], Iterator[Call]]]:
    yield partial(_products, pool, dtype, _PRODUCTS_QUICK if quick else _PRODUCTS)
    yield partial(_batched_products, pool, dtype, _BATCHED_PRODUCTS[::4] if quick else _BATCHED_PRODUCTS)
    for elements in _ELEMENTS_QUICK if quick else _ELEMENTS:
        yield partial(_pointwise, pool, dtype, elements)
        yield partial(_rows, pool, dtype, elements)
        yield partial(_images, pool, dtype, elements)
    yield partial(_attentions, pool, dtype, _ATTENTIONS_QUICK if quick else _ATTENTIONS)
    yield partial(_convolutions, pool, dtype, _CONVOLUTIONS_QUICK if quick else _CONVOLUTIONS)
    if dtype == torch.float32:
        yield partial(_lookups, pool, dtype, _EMBEDDINGS[:2] if quick else _EMBEDDINGS)
        if pool.device.type == "cpu":
            yield partial(_recurrent, pool, dtype, _RECURRENT_QUICK if quick else _RECURRENT)


def _products(pool: TensorPool, dtype: torch.dtype, shapes: Sequence[tuple[int, int, int]]) -> Iterator[Call]:
    # As in the backward pass: a gradient with the weight, and transposed with the input.
    for index, (m, n, k) in enumerate(shapes):
        right = pool.tensor(1, (k, n), dtype)
        yield (
            aten.mm.default,
            (pool.tensor(0, (k, m), dtype).t() if index % 2 else pool.tensor(0, (m, k), dtype), right),
        )
    for m, n, k in shapes[:: 3 if len(shapes) > 10 else 1]:
        left, weight = pool.tensor(0, (m, k), dtype), pool.tensor(1, (n, k), dtype)
        yield aten.addmm.default, (pool.tensor(2, (n,), dtype), left, weight.t())


def _batched_products(
    pool: TensorPool, dtype: torch.dtype, shapes: Sequence[tuple[int, int, int, int]]
) -> Iterator[Call]:
    for batch, m, n, k in shapes:
        yield aten.bmm.default, (pool.tensor(0, (batch, m, k), dtype), pool.tensor(1, (batch, k, n), dtype))


def _pointwise(pool: TensorPool, dtype: torch.dtype, elements: int) -> Iterator[Call]:
    shape = (elements // _ROW, _ROW)
    x, y, target = (pool.tensor(slot, shape, dtype) for slot in (0, 1, 3))
    yield aten.mul.Tensor, (x, y)
    yield aten.add.Tensor, (x, y)
    yield aten.div.Tensor, (x, y)
    yield aten.mul_.Tensor, (target, 0.999)
    yield aten.add_.Tensor, (target, y)
    yield aten.clone.default, (x,)
    yield aten.copy_.default, (target, x)
    yield aten.fill_.Scalar, (target, 1.0)
    yield aten.zeros_like.default, (x,)
    yield aten._to_copy.default, (pool.tensor(0, shape, torch.float32 if dtype != torch.float32 else torch.bfloat16),)
    yield aten.cat.default, ([x, y], 1)
    for func in (aten.relu, aten.gelu, aten.silu, aten.tanh, aten.sigmoid, aten.exp, aten.sqrt, aten.rsqrt, aten.cos):
        yield func.default, (x,)
    yield aten.pow.Tensor_Scalar, (x, 3.0)
    yield aten.threshold_backward.default, (x, y, 0.0)
    yield aten.hardtanh.default, (x, 0.0, 6.0)
    yield aten.hardtanh_backward.default, (x, y, 0.0, 6.0)
    for func in (aten.gelu_backward, aten.silu_backward, aten.tanh_backward, aten.sigmoid_backward):
        yield func.default, (x, y)
    yield aten.where.self, (pool.tensor(2, shape, torch.bool), x, y)
    yield aten.bernoulli_.float, (target, 0.9)
    yield aten.native_dropout.default, (x, 0.1, True)
    yield aten.lerp_.Scalar, (target, x, 0.1)
    yield aten.addcmul_.default, (target, x, y)
    yield aten.addcdiv_.default, (target, x, y)


def _rows(pool: TensorPool, dtype: torch.dtype, elements: int) -> Iterator[Call]:
    shape = (elements // _ROW, _ROW)
    x, y = pool.tensor(0, shape, dtype), pool.tensor(1, shape, dtype)
    weight, bias = pool.tensor(2, (_ROW,), dtype), pool.tensor(3, (_ROW,), dtype)
    yield aten.sum.dim_IntList, (x, [0], True)
    yield aten.mean.dim, (x, [-1], True)
    yield aten._softmax.default, (x, -1, False)
    yield aten._safe_softmax.default, (x, -1)
    yield aten._softmax_backward_data.default, (x, y, -1, dtype)
    yield aten._log_softmax.default, (x, -1, False)
    yield aten._log_softmax_backward_data.default, (x, y, -1, dtype)
    yield aten.native_layer_norm.default, (x, [_ROW], weight, bias, 1e-5)
    _, mean, deviation = aten.native_layer_norm(x, [_ROW], weight, bias, 1e-5)
    yield aten.native_layer_norm_backward.default, (y, x, [_ROW], mean, deviation, weight, bias, [True, True, True])
    # A transposed copy, as heads are split from and joined to rows.
    if elements >= 2**14:
        heads = x.view(elements // 2**14, 64, 4, 64).transpose(1, 2)
        yield aten.clone.default, (heads,)


def _images(pool: TensorPool, dtype: torch.dtype, elements: int) -> Iterator[Call]:
    channels, size = 32, 16
    samples = elements // (channels * size * size)
    if not samples:
        return
    x, y = (pool.tensor(slot, (samples, channels, size, size), dtype) for slot in (0, 1))
    weight = pool.tensor(2, (channels,), torch.float32)
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    yield aten.native_batch_norm.default, (x, weight, weight, mean, variance, True, 0.1, 1e-5)
    backward = (y, x, weight, mean, variance, mean, variance, True, 1e-5, [True, True, True])
    yield aten.native_batch_norm_backward.default, backward
    pool_sizes: tuple[Any, ...] = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    yield aten.max_pool2d_with_indices.default, (x, *pool_sizes)
    out, indices = aten.max_pool2d_with_indices(x, *pool_sizes)
    yield aten.max_pool2d_with_indices_backward.default, (out, x, *pool_sizes, indices)


def _lookups(pool: TensorPool, dtype: torch.dtype, sizes: Sequence[tuple[int, int, int]]) -> Iterator[Call]:
    for rows, width, looked_up in sizes:
        table, grad = pool.tensor(0, (rows, width), dtype), pool.tensor(1, (looked_up, width), dtype)
        ids = torch.randint(rows, (looked_up,), device=table.device)
        yield aten.embedding.default, (table, ids)
        yield aten.embedding_dense_backward.default, (grad, ids, rows, -1, False)


def _attentions(
    pool: TensorPool, dtype: torch.dtype, sizes: Sequence[tuple[int, int, int, int, int, bool]]
) -> Iterator[Call]:
    """The kernel that traces assume: the CPU's own, on GPUs flash in 16 bits and the memory-efficient one in 32."""
    for batch, heads, queries, keys, size, causal in sizes:
        query, grad = (pool.tensor(slot, (batch, heads, queries, size), dtype) for slot in (0, 3))
        key, value = (pool.tensor(slot, (batch, heads, keys, size), dtype) for slot in (1, 2))
        bias: tuple[Any, ...] = ()
        if pool.device.type == "cpu":
            forward = aten._scaled_dot_product_flash_attention_for_cpu
            settings: tuple[Any, ...] = (0.0, causal)
        elif dtype == torch.float32:
            forward = aten._scaled_dot_product_efficient_attention
            bias = (torch.zeros(batch, heads, queries, keys, device=pool.device),)
            settings = (True, 0.0, causal)
        else:
            forward, settings = aten._scaled_dot_product_flash_attention, (0.0, causal)
        args = (query, key, value, *bias, *settings)
        yield forward.default, args
        saved = _results(forward.default, args)
        if saved is None:
            return
        if forward is aten._scaled_dot_product_flash_attention:
            *lengths, seed, offset, _ = saved
            rest: tuple[Any, ...] = (*lengths, 0.0, causal, seed, offset)
        elif bias:
            rest = (*saved, 0.0, [True, True, True, False], causal)
        else:
            rest = (*saved, 0.0, causal)
        backward = getattr(aten, f"{forward.__name__}_backward")
        yield backward.default, (grad, query, key, value, *bias, *rest)


def _convolutions(
    pool: TensorPool, dtype: torch.dtype, sizes: Sequence[tuple[int, int, int, int, int, int, int]]
) -> Iterator[Call]:
    for samples, channels, filters, kernel, size, stride, groups in sizes:
        x = pool.tensor(0, (samples, channels, size, size), dtype)
        weight = pool.tensor(1, (filters, channels // groups, kernel, kernel), dtype)
        padding = 0 if kernel == stride else kernel // 2
        settings: tuple[Any, ...] = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
        yield aten.convolution.default, (x, weight, None, *settings)
        side = (size + 2 * padding - kernel) // stride + 1
        grad = pool.tensor(2, (samples, filters, side, side), dtype)
        needed = [channels > 3, True, False]
        yield aten.convolution_backward.default, (grad, x, weight, None, *settings, needed)


def _recurrent(pool: TensorPool, dtype: torch.dtype, sizes: Sequence[tuple[int, int, int]]) -> Iterator[Call]:
    lstm = 2  # at::native's number of the mode
    for length, batch, width in sizes:
        x = pool.tensor(0, (length, batch, width), dtype)
        weights = [pool.tensor(1, (4 * width, width), dtype), pool.tensor(2, (4 * width, width), dtype)]
        biases = [torch.zeros(4 * width), torch.zeros(4 * width)]
        hidden, cell = torch.zeros(1, batch, width), torch.zeros(1, batch, width)
        shape = (lstm, width, 1, True)
        args: tuple[Any, ...] = (x, *weights, *biases, hidden, cell, False, [], *shape, False, False, True)
        yield aten.mkldnn_rnn_layer.default, args
        with torch.enable_grad():  # it saves something for the backward pass only if there will be one
            needed = [part.detach().requires_grad_() for part in args[:5]]
            saved = _results(aten.mkldnn_rnn_layer.default, (*needed, *args[5:]))
        if saved is None:
            return
        *results, workspace = (part.detach() for part in saved)
        yield (
            aten.mkldnn_rnn_layer_backward.default,
            (*args[:7], *results, *results, False, *shape, True, False, [], False, workspace),
        )


def _results(func: Any, args: tuple[Any, ...]) -> Sequence[Any] | None:
    """Return what the backward operation needs; None where this device or build lacks the kernel."""
    try:
        out: Sequence[Any] = func(*args)
    except (RuntimeError, NotImplementedError):
        return None
    return out
