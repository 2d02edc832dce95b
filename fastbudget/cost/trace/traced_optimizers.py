"""Optimizers by name, and models of those that PyTorch does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from ...core.errors import InvalidInputError, did_you_mean, one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_BLOCK_OF_8BIT_STATE = 256
_SMALLEST_8BIT_TENSOR = 4096
_QUANTIZATION_MAP_ENTRIES = 256

OPTIMIZERS = ("adamw", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon")


def make_optimizer(
    optimizer: str | Callable[[Iterable[torch.nn.Parameter]], Optimizer],
    parameters: Iterable[torch.nn.Parameter],
    *,
    foreach: bool | None,
) -> Optimizer:
    """Build the optimizer that a traced step uses.

    Args:
        optimizer: one of ``OPTIMIZERS``, or a callable ``parameters -> Optimizer``.
        parameters: the trainable parameters.
        foreach: whether named optimizers update all tensors together, as PyTorch does on GPUs by default, or
            one after the other, as on CPUs; None leaves the choice to PyTorch.

    Raises:
        InvalidInputError: for an unknown name.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if callable(optimizer):
        return optimizer(trainable)
    if optimizer == "adamw":
        return torch.optim.AdamW(trainable, foreach=foreach)
    if optimizer == "sgd":
        return torch.optim.SGD(trainable, lr=0.1, foreach=foreach)
    if optimizer == "sgd-momentum":
        return torch.optim.SGD(trainable, lr=0.1, momentum=0.9, foreach=foreach)
    if optimizer == "adafactor":
        return torch.optim.Adafactor(trainable, foreach=foreach)
    if optimizer == "adamw-8bit":
        return AdamW8bitMemory(trainable)
    if optimizer == "lion":
        return Lion(trainable)
    if optimizer == "muon":
        return MuonWithAdamW(trainable, foreach=foreach)
    raise InvalidInputError(
        f"optimizer must be one of {one_of(OPTIMIZERS)} or a callable params -> Optimizer, got {optimizer!r}."
        f"{did_you_mean(str(optimizer), OPTIMIZERS)}"
    )


class AdamW8bitMemory(Optimizer):
    """The memory of bitsandbytes' 8-bit AdamW: it allocates what that does and updates nothing.

    Two states of one byte an element with a float32 scale for each block of 256; tensors under 4096 elements
    keep float32 states. The update is one fused kernel without temporaries. Two quantization maps are shared.
    Source: ``bitsandbytes.optim.optimizer.Optimizer2State.init_state``.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(params, {})
        self._maps: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Allocate the states at the first call."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = self._new_state(parameter)

    def _new_state(self, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        if parameter.numel() < _SMALLEST_8BIT_TENSOR:
            return {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("state1", "state2")}
        if not self._maps:
            self._maps = [torch.empty(_QUANTIZATION_MAP_ENTRIES) for _ in range(2)]
        blocks = -(-parameter.numel() // _BLOCK_OF_8BIT_STATE)
        return {
            "state1": torch.zeros_like(parameter, dtype=torch.uint8),
            "state2": torch.zeros_like(parameter, dtype=torch.uint8),
            "absmax1": torch.zeros(blocks),
            "absmax2": torch.zeros(blocks),
            "qmap1": self._maps[0],
            "qmap2": self._maps[1],
        }


class Lion(Optimizer):
    """Lion: one momentum, sign updates (Chen et al. 2023, "Symbolic Discovery of Optimization ...")."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter by the sign of its blended momentum."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                momentum = state["exp_avg"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = momentum.clone().mul_(beta1).add_(parameter.grad, alpha=1 - beta1).sign_()
                parameter.add_(update, alpha=-group["lr"])
                momentum.lerp_(parameter.grad, 1 - beta2)


class MuonWithAdamW(Optimizer):
    """Muon for matrices and AdamW for the rest, as Muon is used (Jordan et al. 2024)."""

    def __init__(self, params: Iterable[torch.nn.Parameter], *, foreach: bool | None) -> None:
        parameters = list(params)
        super().__init__(parameters, {})
        matrices = [p for p in parameters if p.ndim == 2]
        others = [p for p in parameters if p.ndim != 2]
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(torch.optim.Muon(matrices))
        if others:
            self._parts.append(torch.optim.AdamW(others, foreach=foreach))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update with both."""
        for part in self._parts:
            part.step()
            for parameter, state in part.state.items():
                self.state[parameter] = state
