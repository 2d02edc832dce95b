"""Mixed precision: autocast, and loss scaling where half precision needs it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import torch

from ..core.errors import InvalidInputError, one_of

Precision = Literal["fp32", "bf16-mixed", "fp16-mixed"]

_AUTOCAST = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def check_precision(precision: str) -> None:
    """Raise InvalidInputError for a name that is none of `Precision`'s."""
    if precision not in get_args(Precision):
        raise InvalidInputError(f"precision must be one of {one_of(get_args(Precision))}, got {precision!r}.")


class MixedPrecision:
    """What a precision means to a training step on one device.

    Args:
        precision: ``"fp32"``: as the model is; ``"bf16-mixed"``: autocast to bfloat16; ``"fp16-mixed"``: autocast to
            float16 with a loss scale that adapts itself.
        device: Where the model is.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        check_precision(precision)
        self.name = precision
        self._device_type, self._dtype = device.type, _AUTOCAST.get(precision)
        self.casts = self._dtype is not None
        """Whether there is anything to autocast."""
        self.scales = precision == "fp16-mixed"
        """Whether losses are scaled, and steps skipped while the scale is too large."""
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.scales)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for forward and loss; in fp32 one that leaves an outer autocast alone."""
        return torch.autocast(self._device_type, dtype=self._dtype) if self._dtype else nullcontext()
