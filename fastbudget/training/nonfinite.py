"""What becomes of a loss, gradient or parameter that is NaN or infinite."""

from __future__ import annotations

from pathlib import Path

import torch

from ..budget import CHECKPOINT_DIR
from ..core.errors import NonFiniteLossError


def nonfinite_error(what: str, run_dir: Path) -> NonFiniteLossError:
    """Return the error that ends a run over ``what``."""
    return NonFiniteLossError(
        f"{what}. The last good checkpoint is kept in {run_dir / CHECKPOINT_DIR}; lower the learning rate or "
        "look for bad values in the data (a batch whose targets are all -100 has no loss), then resume."
    )


def check_parameters(model: torch.nn.Module, step: int, run_dir: Path) -> None:
    """Raise before parameters that aren't finite are evaluated or saved: a gradient may break them unseen."""
    if not all(bool(parameter.detach().isfinite().all()) for parameter in model.parameters()):
        raise nonfinite_error(f"A parameter is NaN or infinite after step {step}", run_dir)


def gradient_norm(model: torch.nn.Module) -> torch.Tensor:
    """Return the norm of all gradients together."""
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
