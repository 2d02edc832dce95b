"""What becomes of a loss, gradient or parameter that is NaN or infinite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..budget import CHECKPOINT_DIR
from ..core.errors import NonFiniteLossError

if TYPE_CHECKING:
    from .distributed import Ranks


def nonfinite_error(what: str, run_dir: Path) -> NonFiniteLossError:
    """Return the error that ends a run over ``what``."""
    return NonFiniteLossError(
        f"{what}. The last good checkpoint is kept in {run_dir / CHECKPOINT_DIR}; lower the learning rate or "
        "look for bad values in the data (a batch whose targets are all -100 has no loss), then resume."
    )


def check_parameters(model: torch.nn.Module, step: int, run_dir: Path, ranks: Ranks | None = None) -> None:
    """Raise before parameters that aren't finite are evaluated or saved: a gradient may break them unseen."""
    finite = all(bool(local(parameter.detach()).isfinite().all()) for parameter in model.parameters())
    if not finite if ranks is None else ranks.group.any(not finite):
        raise nonfinite_error(f"A parameter is NaN or infinite after step {step}", run_dir)


def gradient_norm(model: torch.nn.Module) -> torch.Tensor:
    """Return the norm of all gradients together."""
    return whole(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that may be spread over ranks in one piece; all ranks call."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor that may be spread over ranks."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
