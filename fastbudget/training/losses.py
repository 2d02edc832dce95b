"""Losses by name, by function, or the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

from ..core.errors import InvalidInputError, did_you_mean, one_of
from .batches import num_samples

Loss = Callable[[Any, Any], torch.Tensor]

IGNORED = -100  # the target that torch's and Hugging Face's losses leave out

_TARGET_KEYS = ("labels", "label", "targets", "target")


def _logits(outputs: Any) -> torch.Tensor:
    return outputs.logits if hasattr(outputs, "logits") else outputs


def cross_entropy(outputs: Any, batch: Any) -> torch.Tensor:
    """Mean cross-entropy of logits [..., C] (or an output's ``.logits``) against the batch's second, targets [...]."""
    logits, targets = _logits(outputs), batch[1]
    if not targets.is_floating_point():
        targets = targets.long()
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def mse(outputs: Any, batch: Any) -> torch.Tensor:
    """Mean squared error against the batch's second."""
    return F.mse_loss(_logits(outputs), batch[1])


def own_loss(outputs: Any, batch: Any) -> torch.Tensor:
    """The loss the model returns: the scalar itself, ``.loss``, or ``["loss"]``."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is None:
        raise InvalidInputError(
            f"The model returned a {type(outputs).__name__} without a loss; give loss=, a function "
            "loss(outputs, batch) -> scalar."
        )
    return found


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse, "own": own_loss}


def resolve_loss(loss: str | Loss | None) -> Loss:
    """Return a loss function: by name, as given, or the model's own for None."""
    if loss is None:
        return own_loss
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise InvalidInputError(f"Unknown loss {loss!r}.{did_you_mean(loss, LOSSES)} Known: {one_of(LOSSES)}.")
    return LOSSES[loss]


def check_scalar(value: Any) -> torch.Tensor:
    """Return the loss if it is a scalar tensor that can be differentiated, else raise InvalidInputError."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        given = f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise InvalidInputError(f"The loss must be a scalar tensor, got {given}; average or sum it.")
    if not value.requires_grad:
        raise InvalidInputError("The loss doesn't depend on any trainable parameter: it can't be differentiated.")
    return value


def count_targets(batch: Any, *, shifted: bool = False) -> int:
    """Return how many targets a mean loss averages over: the weight of a micro-batch's loss.

    Targets are the batch's second, or its ``labels`` (``label``, ``targets``, ``target``): all elements, but for
    integers equal to -100. A batch without targets of that kind counts its samples.

    Args:
        batch: A pair (inputs, targets), or a mapping.
        shifted: Position 0 of ``labels [B, L]`` is no target: Hugging Face's causal models predict the next token.
    """
    targets = None
    if isinstance(batch, Mapping):
        targets = next((batch[name] for name in _TARGET_KEYS if name in batch), None)
    elif isinstance(batch, list | tuple) and len(batch) == 2:
        targets = batch[1]
    if not isinstance(targets, torch.Tensor) or targets.ndim == 0:
        return num_samples(batch)
    if shifted and targets.ndim > 1:
        targets = targets[..., 1:]
    if targets.is_floating_point() or targets.dtype == torch.bool:
        return targets.numel()
    return int((targets != IGNORED).sum())


def predicts_next_token(model: torch.nn.Module) -> bool:
    """Whether a model's own loss shifts its labels by one, as Hugging Face's causal language models do."""
    classes = type(getattr(model, "module", model)).__mro__
    return any(kind.__name__.endswith(("ForCausalLM", "LMHeadModel")) for kind in classes)
