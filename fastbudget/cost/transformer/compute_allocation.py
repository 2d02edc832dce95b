"""How to divide a budget of compute between parameters and tokens: the scaling law of Chinchilla."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import InvalidInputError, one_of
from ...hardware.devices import Device, find_device

# Loss = E + A / params^alpha + B / tokens^beta.
_LAWS = {
    "besiroglu-2024": (1.8172, 482.01, 2085.43, 0.3478, 0.3658),
    "hoffmann-2022": (1.69, 406.4, 410.7, 0.34, 0.28),
}
_SOURCES = {
    "besiroglu-2024": "Besiroglu et al. 2024, Chinchilla Scaling: A Replication Attempt, arXiv:2404.10102",
    "hoffmann-2022": "Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, approach 3, "
    "arXiv:2203.15556",
}


@dataclass(frozen=True, kw_only=True)
class ComputeAllocation:
    """The model and the data with the lowest loss for a budget.

    Attributes:
        num_params: parameters.
        tokens: tokens to train on.
        flops: the budget, 6 FLOPs per parameter and token.
        loss: the law's cross-entropy per token, in nats; on the law's own data and vocabulary.
        source: the law.
    """

    num_params: float
    tokens: float
    flops: float
    loss: float
    source: str


def compute_optimal(
    *,
    flops: float | None = None,
    gpu_hours: float | None = None,
    hardware: str | Device | None = None,
    mfu: float = 0.4,
    law: str = "besiroglu-2024",
) -> ComputeAllocation:
    """Return the parameters and tokens with the lowest loss for a budget of compute.

    Minimizes E + A/N^alpha + B/D^beta under flops = 6·N·D (Hoffmann et al. 2022, arXiv:2203.15556, equation 4).
    The default constants are Besiroglu et al.'s (arXiv:2404.10102), who found those of Hoffmann et al. not to
    fit the published data; they agree with its other two approaches: about 20 tokens per parameter.
    A model that will serve many requests should be smaller and trained for longer than this.

    Args:
        flops: the budget in FLOPs; or else
        gpu_hours: in device-hours on `hardware`.
        hardware: the accelerator, with `gpu_hours`.
        mfu: share of its dense 16-bit peak that training reaches, with `gpu_hours`.
        law: ``"besiroglu-2024"`` or ``"hoffmann-2022"``.

    Raises:
        InvalidInputError: not exactly one budget is given, it isn't positive, or a name is unknown.
    """
    if law not in _LAWS:
        raise InvalidInputError(f"law must be one of {one_of(_LAWS)}, got {law!r}.")
    if (flops is None) == (gpu_hours is None):
        raise InvalidInputError("Give exactly one budget: flops or gpu_hours.")
    if flops is None:
        assert gpu_hours is not None
        flops = _affordable_flops(gpu_hours, hardware, mfu)
    _check_positive("flops", flops)
    floor, of_params, of_tokens, alpha, beta = _LAWS[law]
    # The derivative by log N vanishes where alpha·A/N^alpha = beta·B/D^beta.
    scale = (alpha * of_params / (beta * of_tokens)) ** (1.0 / (alpha + beta))
    num_params = scale * (flops / 6.0) ** (beta / (alpha + beta))
    tokens = flops / (6.0 * num_params)
    return ComputeAllocation(
        num_params=num_params,
        tokens=tokens,
        flops=flops,
        loss=floor + of_params / num_params**alpha + of_tokens / tokens**beta,
        source=_SOURCES[law],
    )


def _affordable_flops(gpu_hours: float, hardware: str | Device | None, mfu: float) -> float:
    _check_positive("gpu_hours", gpu_hours)
    if hardware is None:
        raise InvalidInputError('gpu_hours needs hardware: what a device-hour computes depends on it ("h100-sxm").')
    if not 0.0 < mfu <= 1.0:
        raise InvalidInputError(f"mfu must be a share in (0, 1], got {mfu!r}. 40% is 0.4.")
    device = find_device(hardware)
    peak = device.bf16_flops_per_s or device.fp16_flops_per_s
    if peak is None:
        raise InvalidInputError(f"{device.name} has no known 16-bit peak. Give the budget in flops.")
    return gpu_hours * 3600.0 * mfu * peak


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
        raise InvalidInputError(f"{name} must be a positive, finite number, got {value!r}.")
