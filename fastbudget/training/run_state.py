"""All that a run needs to go on as if it had not been stopped: as a checkpoint holds it, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..checkpoint import Checkpoint
from ..core.errors import InvalidInputError
from .batch_stream import epoch_seed
from .distributed.joined_values import num_parts, own_part
from .early_stopping import EarlyStopping
from .generators import generator_states, set_generator_states
from .staged_stream import Stream
from .training_step import TrainingStep

if TYPE_CHECKING:
    from .distributed import Ranks

_PARTS = (
    "model",
    "optimizer",
    "base_rates",
    "step",
    "data",
    "random",
    "loss_scale",
    "progress",
    "stages",
    "early_stopping",
)


def collect_state(
    step: int,
    training_step: TrainingStep,
    stream: Stream,
    early_stopping: EarlyStopping | None,
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Return the state after ``step``. With ranks all call, and all get the same but for sharded tensors."""
    data, random = stream.state_dict(), generator_states()
    if ranks is not None:
        ranks.model.share_buffers()
        data, random = ranks.joined(data), ranks.joined(random)
    return {
        "model": training_step.model.state_dict(),
        "optimizer": training_step.optimizer.state_dict(),
        "base_rates": training_step.base_rates,
        "step": step,
        "data": data,
        "random": random,
        "loss_scale": training_step.precision.scaler.state_dict(),
        "early_stopping": early_stopping.state_dict() if early_stopping is not None else None,
    }


def check_state(checkpoint: Checkpoint) -> None:
    """Raise InvalidInputError for a checkpoint that lacks a part."""
    state = checkpoint.state
    missing = [name for name in _PARTS if name not in state]
    if "random" not in missing:
        random = own_part(state["random"], 0)
        missing = [f"random.{name}" for name in generator_states() if name not in random] + missing
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


def data_position(checkpoint: Checkpoint, ranks: Ranks | None = None) -> Mapping[str, Any]:
    """Return where this rank's data goes on.

    Raises:
        InvalidInputError: each rank had data of its own, and there is another number of ranks now.
    """
    saved = checkpoint.state["data"]
    rank, world_size = (0, 1) if ranks is None else (ranks.rank, ranks.world_size)
    if num_parts(saved) not in (None, world_size):
        raise InvalidInputError(
            f"Checkpoint {checkpoint.path} was saved by {num_parts(saved)} ranks, each with data of its own, and there "
            f"are {world_size} now: the position can't be shared out. Resume with as many, or train on global batches "
            "(one loader for all ranks, a ResumableSampler, a TokenDataset)."
        )
    return own_part(saved, rank)


def restore_generators(checkpoint: Checkpoint, ranks: Ranks | None = None) -> None:
    """Put the random generators back. Entering the data draws from them, so this comes last.

    On another number of ranks than saved them, those that are new draw anew; but for an epoch that has not begun, whose
    order all ranks draw alike.
    """
    saved, rank = checkpoint.state["random"], 0 if ranks is None else ranks.rank
    set_generator_states(own_part(saved, rank))
    if rank >= (num_parts(saved) or 1) and data_position(checkpoint, ranks)["position"]:
        torch.manual_seed(epoch_seed(rank, checkpoint.state["step"]))
