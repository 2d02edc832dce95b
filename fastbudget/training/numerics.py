"""How a run computes: TF32, and compilation; both undone when it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..core.errors import InvalidInputError


@contextmanager
def float32_products(allow_tf32: bool | None) -> Iterator[None]:
    """Set whether float32 matrix products and convolutions on NVIDIA GPUs may round their inputs to TF32.

    TF32 keeps 10 of float32's 23 bits of mantissa and is several times as fast on Ampere and later; sums stay in
    float32. Source: NVIDIA A100 Tensor Core GPU Architecture, 2020.

    Args:
        allow_tf32: None: as PyTorch is set.
    """
    if allow_tf32 is None:
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if allow_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = allow_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@contextmanager
def compiled(model: torch.nn.Module, options: bool | Mapping[str, Any]) -> Iterator[None]:
    """Have calls of the model compiled by `torch.compile`, in place: names in its state stay as they are.

    Args:
        model: The model.
        options: False: not; True: with PyTorch's defaults; or `torch.compile`'s options, such as ``{"mode":
            "max-autotune"}``.
    """
    if options is False:
        yield
        return
    before = model._compiled_call_impl

    # Not model.compile(): it begins in PyTorch's own files, which Dynamo passes over, so that a Sequential stays eager.
    def call(*inputs: Any, **keywords: Any) -> Any:
        return model._call_impl(*inputs, **keywords)

    model._compiled_call_impl = torch.compile(call, **({} if options is True else dict(options)))
    try:
        yield
    finally:
        model._compiled_call_impl = before


@contextmanager
def numerics(model: torch.nn.Module, *, allow_tf32: bool | None, compile: bool | Mapping[str, Any]) -> Iterator[None]:
    """Both of the above."""
    with ExitStack() as stack:
        stack.enter_context(float32_products(allow_tf32))
        stack.enter_context(compiled(model, compile))
        yield


def check_compile_options(options: bool | Mapping[str, Any]) -> None:
    """Raise InvalidInputError for what `torch.compile` would refuse only when the first step runs."""
    if isinstance(options, bool):
        return
    if not isinstance(options, Mapping):
        raise InvalidInputError(
            f"compile must be True, False or a mapping of torch.compile's options, got {options!r}."
        )
    known = {"fullgraph", "dynamic", "backend", "mode", "options", "disable"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidInputError(f"compile takes torch.compile's options {sorted(known)}, got {unknown}.")
