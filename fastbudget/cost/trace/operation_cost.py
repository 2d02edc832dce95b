"""Floating-point operations and moved bytes of one operation, from the shapes it ran on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

aten = torch.ops.aten


def operation_flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the floating-point operations of matrix products, convolutions and attention; 0 for the rest.

    The formulas are those of ``torch.utils.flop_counter``: a multiply-add is two, and attention counts its
    whole score matrix, causal or not. The attention kernels of the CPU, which it leaves out, follow the same.
    """
    packet = func.overloadpacket
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return int(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        grad, query, key, value = args[:4]
        return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))
    if packet is aten._grouped_mm:
        return _grouped_mm_flops(args[0], args[1], out)
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0


def moved_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that an operation reads and writes: each tensor once, broadcast dimensions once."""
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
