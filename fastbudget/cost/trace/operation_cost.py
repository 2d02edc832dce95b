"""Floating-point operations and moved bytes of one operation, from the shapes it ran on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

aten = torch.ops.aten

_ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_backward,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_efficient_attention_backward,
)
_LOOKUPS = (aten.embedding, aten.index, aten.index_select, aten.gather)
_ROW_UPDATES = (aten.index_put_, aten.index_add_, aten.scatter_add_)
_RECURRENT = (aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward)


def operation_flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the floating-point operations of matrix products, convolutions and attention; 0 for the rest.

    The formulas are those of ``torch.utils.flop_counter``: a multiply-add is two, and attention counts its
    whole score matrix, causal or not. The attention kernels and recurrent layers of the CPU, which it leaves out,
    follow the same.
    """
    packet = func.overloadpacket
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return int(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        grad, query, key, value = args[:4]
        return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))
    if packet is aten._grouped_mm:
        return _grouped_mm_flops(args[0], args[1], out)
    if packet in _RECURRENT:
        products = 1 if packet is aten.mkldnn_rnn_layer else 2
        return 2 * products * math.prod(product_shape(func, args, kwargs, out))
    if packet is aten.convolution_backward:
        # flop_counter's own formula counts a grouped convolution's weight gradient as if it had one group.
        return 2 * sum(args[10][:2]) * math.prod(product_shape(func, args, kwargs, out))
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0


def product_shape(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> tuple[int, int, int, int]:
    """Return batch, m, n and k of the matrix products that an operation is made of; zeros for the rest.

    Each of ``batch`` products multiplies [m, k] by [k, n]. A convolution has one product for each group, with the
    output positions as rows; attention one for each head, queries against keys over the head's size, causal attention
    against half of the keys; a recurrent layer one for each position of the sequence. Backward operations bear the
    shape of their forward ones.
    """
    packet = func.overloadpacket
    if packet in (aten.mm, aten._scaled_mm):
        return 1, args[0].shape[0], args[1].shape[1], args[0].shape[1]
    if packet is aten.addmm:
        return 1, args[1].shape[0], args[2].shape[1], args[1].shape[1]
    if packet in (aten.bmm, aten.baddbmm):
        left, right = args[0:2] if packet is aten.bmm else args[1:3]
        return left.shape[0], left.shape[1], right.shape[2], left.shape[2]
    if packet is aten._grouped_mm:
        return _grouped_mm_shape(args[0], args[1], out)
    if packet is aten.convolution:
        return _convolution_shape(args[1], out, transposed=args[6], groups=args[8])
    if packet is aten.convolution_backward:
        return _convolution_shape(args[2], args[0], transposed=args[7], groups=args[9])
    if packet in _ATTENTION:
        named = {argument.name: given for argument, given in zip(func._schema.arguments, args, strict=False)}
        named.update(kwargs)
        query, keys = named["query"], named["key"].shape[2]
        if named.get("is_causal", False):
            keys = -(-keys // 2)
        return query.shape[0] * query.shape[1], query.shape[2], keys, query.shape[3]
    if packet in _RECURRENT:
        rows = args[0]  # [length, batch, width]
        gates, width = args[1].shape
        hidden = args[2].shape[1]
        return rows.shape[0], rows.shape[1], gates, width + hidden
    return 0, 0, 0, 0


def operation_bytes(func: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Return the bytes that an operation reads and writes; of a table that it looks rows up in, those rows only."""
    packet = func.overloadpacket
    if packet in _LOOKUPS:
        return moved_bytes([*inputs[1:], *outputs]) + moved_bytes(outputs)
    if packet in _ROW_UPDATES:
        return moved_bytes(inputs[1:]) + 2 * moved_bytes(inputs[-1:])
    return moved_bytes([*inputs, *outputs])


def moved_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors: each tensor once, broadcast dimensions once."""
    total = 0
    seen = set()
    for tensor in tensors:
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        elements = 1
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            if stride != 0:
                elements *= size
        total += elements * tensor.element_size()
    return total


def _grouped_mm_flops(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> int:
    """Every row meets one group's matrix; two 2-D operands are split along the summed dimension."""
    if first.dim() == 2 and second.dim() == 2:
        return 2 * first.shape[0] * first.shape[1] * second.shape[1]
    return 2 * out.numel() * first.shape[-1]


def _grouped_mm_shape(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> tuple[int, int, int, int]:
    """As many products as there are groups, each of an even share of what is split."""
    if first.dim() == 2 and second.dim() == 2:
        return out.shape[0], first.shape[0], second.shape[1], -(-first.shape[1] // out.shape[0])
    if first.dim() == 2:
        return second.shape[0], -(-first.shape[0] // second.shape[0]), second.shape[2], first.shape[1]
    if second.dim() == 2:
        return first.shape[0], first.shape[1], -(-second.shape[1] // first.shape[0]), first.shape[2]
    return first.shape[0], first.shape[1], second.shape[2], first.shape[2]


def _convolution_shape(
    weight: torch.Tensor, out: torch.Tensor, *, transposed: bool, groups: int
) -> tuple[int, int, int, int]:
    """``weight`` is [out, in / groups, *kernel], of a transposed one [in, out / groups, *kernel]."""
    inner = math.prod(weight.shape[1:])
    if transposed:
        inner = weight.shape[0] // groups * math.prod(weight.shape[2:])
    return groups, out.shape[0] * math.prod(out.shape[2:]), out.shape[1] // groups, inner
