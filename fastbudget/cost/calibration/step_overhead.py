"""What the host needs from one operation to the next: Python, modules, autograd, dispatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..trace.training_step import run_training_step
from .timing import Samples

_WIDTH, _HEADS, _LENGTH, _LAYERS = 16, 2, 4, 4
PHASES = ("forward", "backward", "optimizer")


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(_WIDTH)
        self.heads = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.joined = nn.Linear(_WIDTH, _WIDTH)
        self.network = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.heads(self.before(x)).view(1, _LENGTH, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(mixed.transpose(1, 2).reshape(1, _LENGTH, _WIDTH))
        return x + self.network(x)


class _TinyModel(nn.Module):
    """A transformer too small to compute anything: what its step takes is the host's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(_Layer() for _ in range(_LAYERS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).pow(2).mean()


class _OperationCount(TorchDispatchMode):
    """Counts operations by phase as traces do: views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = PHASES[0]
        self.counts = dict.fromkeys((*PHASES, "zero_grad"), 0)

    def enter(self, phase: str) -> None:
        self.phase = phase

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not func.is_view and func is not torch.ops.aten.detach.default:
            self.counts[self.phase] += 1
        return func(*args, **(kwargs or {}))


def measure_host_seconds(device: torch.device, *, until: float, most_steps: int = 50) -> dict[str, float]:
    """Return seconds per operation in each phase of the tiny model's step, and under ``"evaluate"`` in inference.

    Args:
        device: where the model runs.
        until: when to stop, on ``time.perf_counter``'s clock; a few steps are always taken.
        most_steps: enough for a steady result.
    """
    model = _TinyModel().to(device)
    x = torch.zeros(1, _LENGTH, _WIDTH, device=device)
    # As it is traced: one tensor after the other, which is the default on the CPU.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=None if device.type == "cpu" else True)
    wait: Callable[[], None] = (lambda: None) if device.type == "cpu" else torch.cuda.synchronize
    # One thread does all of it: its CPU time leaves out what other processes take.
    now = time.thread_time if device.type == "cpu" else time.perf_counter
    samples = {phase: Samples() for phase in (*PHASES, "evaluate")}

    def evaluate() -> float:
        began = now()
        with torch.no_grad():
            model(x)
        wait()
        return now() - began

    with _OperationCount() as count:
        for _ in range(2):  # the first step builds the optimizer's states
            count.counts = dict.fromkeys(count.counts, 0)
            count.enter("forward")
            run_training_step(model, [x], optimizer, None, precision="fp32", enter_phase=count.enter)
    for step in range(most_steps):
        began: dict[str, float] = {}

        def enter(phase: str, began: dict[str, float] = began) -> None:
            wait()
            began[phase] = now()

        run_training_step(model, [x], optimizer, None, precision="fp32", enter_phase=enter)
        spent = {
            "forward": began["backward"] - began["forward"],
            "backward": began["optimizer"] - began["backward"],
            "optimizer": began["zero_grad"] - began["optimizer"],
            "evaluate": evaluate(),
        }
        for phase, seconds in spent.items():
            samples[phase].seconds.append(seconds)
        if time.perf_counter() > until and step >= 2:
            break
    counts = {**count.counts, "evaluate": count.counts["forward"]}
    return {phase: taken.undisturbed_s / counts[phase] for phase, taken in samples.items()}
