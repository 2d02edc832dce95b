"""Corrections to PyTorch's fake kernels where they are missing, or where real ones return something else.

Found by running both on the same inputs (``tests/cost/test_fake_kernels.py`` does so again).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only

from .known_values import KnownValues

aten = torch.ops.aten

Kernel = Callable[[Any, Sequence[Any], Mapping[str, Any], KnownValues], Any]

_LOW_PRECISION = (torch.bfloat16, torch.float16)
_GROUPED_MM_ALIGNMENT_BYTES = 16


def run_fake_kernel(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: KnownValues) -> Any:
    """Run an operation on fake tensors; the result has the shapes, strides and types of the real kernel's."""
    corrected = _CORRECTED.get(func.overloadpacket)
    return func(*args, **kwargs) if corrected is None else corrected(func, args, kwargs, known)


def _normalization(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: KnownValues) -> Any:
    """Statistics of low-precision inputs are kept in float32 when the weights are."""
    out, mean, rstd = func(*args, **kwargs)
    input_, weight = args[0], args[2] if func.overloadpacket is aten.native_layer_norm else args[1]
    if input_.dtype in _LOW_PRECISION and (weight is None or weight.dtype == torch.float32):
        mean, rstd = (torch.empty_like(part, dtype=torch.float32) for part in (mean, rstd))
    if func.overloadpacket is aten.native_layer_norm:
        out = _contiguous(out)
    return out, mean, rstd


def _first_contiguous(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: KnownValues) -> Any:
    out = func(*args, **kwargs)
    if isinstance(out, torch.Tensor):
        return _contiguous(out)
    first, *rest = out
    return (None if first is None else _contiguous(first), *rest)


def _group_norm_backward(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: KnownValues) -> Any:
    grad_input, *rest = func(*args, **kwargs)
    if grad_input is not None and grad_input.dtype != args[1].dtype:
        grad_input = torch.empty_like(grad_input, dtype=args[1].dtype)
    return (grad_input, *rest)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _grouped_mm(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: KnownValues) -> Any:
    """Grouped matrix product in any type, rows padded to 16 bytes; PyTorch's fake one takes bfloat16 only."""
    first, second = args[0], args[1]
    offsets: Any = args[2] if len(args) > 2 else kwargs.get("offs")
    dtype = (args[4] if len(args) > 4 else kwargs.get("out_dtype")) or first.dtype
    if first.dim() == 2 and second.dim() == 2:
        shape = [offsets.shape[0], first.shape[0], second.shape[1]]
    elif first.dim() == 2:
        shape = [first.shape[0], second.shape[-1]]
    elif second.dim() == 2:
        shape = [first.shape[1], second.shape[1]]
    else:
        shape = [first.shape[0], first.shape[1], second.shape[-1]]
    alignment = _GROUPED_MM_ALIGNMENT_BYTES // dtype.itemsize
    row = -(-shape[-1] // alignment) * alignment
    strides = [shape[1] * row, row, 1] if len(shape) == 3 else [row, 1]
    return torch.empty_strided(shape, strides, dtype=dtype)


def _ctc_loss(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: KnownValues) -> Any:
    """The table of the forward variable is [batch, time, 2 * longest target + 1]."""
    log_probabilities, targets, lengths = args[0], args[1], args[3]
    if isinstance(lengths, torch.Tensor):
        value = known.value_of(lengths)
        with no_dispatch():
            lengths = None if value is None else value.tolist()
    longest = max(lengths) if lengths else targets.shape[-1]
    batch = log_probabilities.shape[1] if log_probabilities.dim() == 3 else 1
    time = log_probabilities.shape[0]
    losses = log_probabilities.new_empty(batch) if log_probabilities.dim() == 3 else log_probabilities.new_empty(())
    return losses, log_probabilities.new_empty(batch, time, 2 * longest + 1)


def _mkldnn_rnn_layer(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: KnownValues) -> Any:
    """oneDNN alone knows how much a recurrent layer saves for its backward pass: it is run to learn it."""
    *results, _ = func(*args, **kwargs)
    with no_dispatch():
        real_args, real_kwargs = tree_map_only(
            torch.Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), (tuple(args), dict(kwargs))
        )
        saved = func(*real_args, **real_kwargs)[3]
    return (*results, torch.empty(0 if saved is None else saved.numel(), dtype=torch.uint8))


_CORRECTED: dict[Any, Kernel] = {
    aten.native_layer_norm: _normalization,
    aten.native_batch_norm: _normalization,
    aten.native_group_norm: _normalization,
    aten.native_layer_norm_backward: _first_contiguous,
    aten.native_group_norm_backward: _group_norm_backward,
    aten._log_softmax_backward_data: _first_contiguous,
    aten._grouped_mm: _grouped_mm,
    aten._ctc_loss: _ctc_loss,
    aten.mkldnn_rnn_layer: _mkldnn_rnn_layer,
}
