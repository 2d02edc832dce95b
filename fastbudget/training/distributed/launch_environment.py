"""What torchrun tells each of its processes, in environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ...core.errors import InvalidInputError

_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCH = "start the script with `torchrun --nproc-per-node N script.py` or `fastbudget train script.py --nproc N`"


@dataclass(frozen=True, kw_only=True)
class LaunchEnvironment:
    """A process's place among those launched together; ``local`` means on this machine."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def launched_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks the launcher started; 1 without a launcher."""
    text = environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdecimal() else 1


def read_launch_environment(environ: Mapping[str, str] = os.environ) -> LaunchEnvironment:
    """Return this process's place.

    Raises:
        InvalidInputError: variables are missing, or no numbers, or contradict each other.
    """
    missing = [name for name in _REQUIRED if not environ.get(name)]
    if missing:
        raise InvalidInputError(
            f"Training on several ranks needs the environment variables of a launcher, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set; {_LAUNCH}."
        )
    rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    local_world_size = _number(environ, "LOCAL_WORLD_SIZE", world_size)
    local_rank = _number(environ, "LOCAL_RANK", rank % max(1, local_world_size))
    if not 0 <= rank < world_size or not 0 <= local_rank < local_world_size:
        raise InvalidInputError(
            f"RANK must be below WORLD_SIZE and LOCAL_RANK below LOCAL_WORLD_SIZE, got RANK={rank}, "
            f"WORLD_SIZE={world_size}, LOCAL_RANK={local_rank}, LOCAL_WORLD_SIZE={local_world_size}; {_LAUNCH}."
        )
    return LaunchEnvironment(rank=rank, world_size=world_size, local_rank=local_rank, local_world_size=local_world_size)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise InvalidInputError(f"The environment variable {name} must be a number, got {text!r}; {_LAUNCH}.") from None
