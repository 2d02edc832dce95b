"""All that a run needs to go on as if it had not been stopped: as a checkpoint holds it, and back."""

from __future__ import annotations

from typing import Any

from ..checkpoint import Checkpoint
from ..core.errors import InvalidInputError
from .batch_stream import BatchStream
from .early_stopping import EarlyStopping
from .generators import generator_states, set_generator_states
from .training_step import TrainingStep

_PARTS = ("model", "optimizer", "base_rates", "step", "data", "random", "loss_scale", "early_stopping")


def collect_state(
    step: int, training_step: TrainingStep, stream: BatchStream, early_stopping: EarlyStopping | None
) -> dict[str, Any]:
    """Return the state after ``step``."""
    return {
        "model": training_step.model.state_dict(),
        "optimizer": training_step.optimizer.state_dict(),
        "base_rates": training_step.base_rates,
        "step": step,
        "data": stream.state_dict(),
        "random": generator_states(),
        "loss_scale": training_step.precision.scaler.state_dict(),
        "early_stopping": early_stopping.state_dict() if early_stopping is not None else None,
    }


def check_state(checkpoint: Checkpoint) -> None:
    """Raise InvalidInputError for a checkpoint that lacks a part."""
    state = checkpoint.state
    missing = [name for name in _PARTS if name not in state]
    if "random" not in missing:
        missing = [f"random.{name}" for name in generator_states() if name not in state["random"]] + missing
    if missing:
        raise InvalidInputError(
            f"Checkpoint {checkpoint.path} lacks {', '.join(missing)}: training can't go on from it exactly. "
            "Resume from a whole one, or start anew in another run_dir with the model it holds."
        )


def restore_state(checkpoint: Checkpoint, training_step: TrainingStep, early_stopping: EarlyStopping | None) -> None:
    """Put the state back, but for the data's position and the random generators; see `restore_generators`.

    Raises:
        InvalidInputError: it lacks a part, or belongs to another model, optimizer or precision.
    """
    check_state(checkpoint)
    state, precision = checkpoint.state, training_step.precision
    try:
        training_step.model.load_state_dict(state["model"])
        training_step.optimizer.load_state_dict(state["optimizer"])
        if precision.scales:
            precision.scaler.load_state_dict(state["loss_scale"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise InvalidInputError(
            f"Checkpoint {checkpoint.path} doesn't fit the model, optimizer or precision: {error} Resume with "
            "those it was saved from, or start anew."
        ) from error
    training_step.base_rates = state["base_rates"]
    if early_stopping is not None and state["early_stopping"] is not None:
        early_stopping.load_state_dict(state["early_stopping"])


def restore_generators(checkpoint: Checkpoint) -> None:
    """Put the random generators back. Entering the data draws from them, so this comes last."""
    set_generator_states(checkpoint.state["random"])
