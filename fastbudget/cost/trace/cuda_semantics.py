"""Run a model on CPU fake tensors the way CUDA would run it.

A CPU build of PyTorch has no CUDA fake tensors (autograd aborts on them), so a trace for a GPU runs on CPU
ones and replaces, as they are called, the functions that CUDA runs by other kernels or in other types:
attention, dropout and the float32 functions of autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
_nn: Any = torch._C._nn

# Source: torch/aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE.
_FLOAT32_FUNCTIONS = frozenset({
    "acos", "asin", "binary_cross_entropy_with_logits", "cdist", "cosh", "cosine_embedding_loss",
    "cosine_similarity", "dist", "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss", "huber_loss",
    "kl_div", "l1_loss", "layer_norm", "log", "log10", "log1p", "log2", "margin_ranking_loss", "mse_loss",
    "nll_loss", "norm", "poisson_nll_loss", "pow", "reciprocal", "renorm", "rms_norm", "rsqrt", "sinh",
    "smooth_l1_loss", "soft_margin_loss", "softplus", "tan", "triplet_margin_loss",
})  # fmt: skip
_FLOAT32_RESULTS = frozenset({"cumprod", "cumsum", "log_softmax", "prod", "softmax", "softmin", "sum"})
_LOW_PRECISION = (torch.bfloat16, torch.float16)
# Head sizes up to which the flash kernel runs: torch/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
_LARGEST_FLASH_HEAD = 256


class CudaSemantics(TorchFunctionMode):
    """While entered, torch functions run as on CUDA: the same kernels, the same types.

    A mode is off while it handles a function, and so would miss what a Python function such as
    ``F.multi_head_attention_forward`` or ``Tensor.backward`` calls inside. Those are therefore told that
    there is no mode; the compiled functions that they end in find it all the same.
    """

    def __enter__(self) -> CudaSemantics:
        self._patches = ExitStack()
        for module in (F, torch.functional, torch.autograd, torch._tensor):
            for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
                if hasattr(module, name):
                    self._patches.enter_context(mock.patch.object(module, name, lambda *_: False))
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._patches.close()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        special = _SPECIAL.get(func)
        if special is not None:
            return special(*args, **kwargs)
        if torch.is_autocast_enabled("cpu"):
            name = getattr(func, "__name__", "")
            if name in _FLOAT32_FUNCTIONS:
                args = [_to_float32(argument) for argument in args]
                kwargs = {key: _to_float32(value) for key, value in kwargs.items()}
            elif name in _FLOAT32_RESULTS and kwargs.get("dtype") is None and _first_is_low_precision(args):
                # The kernel reads half precision and writes float32: no converted copy of its input.
                kwargs["dtype"] = torch.float32
        return func(*args, **kwargs)


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0.0 or input.numel() == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


def _cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    if (
        torch.is_autocast_enabled("cpu")
        and input.dtype in _LOW_PRECISION
        and label_smoothing == 0.0
        and not target.is_floating_point()
    ):
        log_probabilities = torch.log_softmax(input, 1 if input.dim() > 1 else 0, dtype=torch.float32)
        return _nn.nll_loss_nd(log_probabilities, target, weight, reduction, ignore_index)
    return _nn.cross_entropy_loss(input, target, weight, reduction, ignore_index, label_smoothing)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention as one kernel: flash where it runs, else the memory-efficient one, else explicit math."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (part.to(dtype) for part in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    head = query.shape[-1]
    fused = query.dim() == 4 and head == value.shape[-1] and query.dtype in (*_LOW_PRECISION, torch.float32)
    same_heads = query.dim() == 4 and query.shape[1] == key.shape[1] == value.shape[1]
    flash = query.dtype in _LOW_PRECISION and head <= _LARGEST_FLASH_HEAD and (same_heads or enable_gqa)
    if fused and flash and attn_mask is None:
        padded = -head % 8
        if padded:
            query, key, value = (F.pad(part, (0, padded)) for part in (query, key, value))
        out: torch.Tensor = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=head**-0.5 if scale is None else scale
        )[0]
        return out[..., :head] if padded else out
    if fused and same_heads and head % 4 == 0:
        bias = None if attn_mask is None else _attention_bias(attn_mask, query, key)
        needs_gradient = query.requires_grad or key.requires_grad or value.requires_grad
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_gradient, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _attention_bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Boolean masks become an additive bias of the query's type, rows padded to 16 elements."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
    padded = -mask.shape[-1] % 16
    if padded:
        mask = F.pad(mask, (0, padded))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _LOW_PRECISION else value


def _first_is_low_precision(args: Sequence[Any]) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype in _LOW_PRECISION


_SPECIAL: dict[Any, Callable[..., torch.Tensor]] = {
    torch.dropout: _dropout,
    _nn.cross_entropy_loss: _cross_entropy,
    F.scaled_dot_product_attention: _attention,
}
