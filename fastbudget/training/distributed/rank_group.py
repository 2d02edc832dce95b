"""The processes of a run: what each must know of the others, in few and small collectives."""

from __future__ import annotations

import atexit
import socket
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ...core.errors import BudgetSpent, FastbudgetError, InvalidInputError, RankFailedError
from .launch_environment import LaunchEnvironment, read_launch_environment

T = TypeVar("T")

# While rank 0 evaluates or saves the others wait: no time-out may end that. A dead rank ends it (`RankFailures`).
_PATIENCE = timedelta(days=30)


class RankGroup:
    """This process among all of its run; made by all at once.

    Its collectives go over gloo, on the CPU, so that none waits for a GPU's queue.

    Args:
        device: Where this rank's model is.
        timeout_s: For the collectives of training; only where the process group isn't there yet.

    Raises:
        InvalidInputError: the launcher's variables are missing, or the ranks' devices don't fit together.
    """

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        join_process_group(device, timeout_s)
        self.rank: int = dist.get_rank()
        self.world_size: int = dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        _check_devices(self.gather((socket.gethostname(), str(device))))

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which decides and writes."""
        return self.rank == 0

    def sums(self, *values: float) -> list[float]:
        """Return each value's sum over ranks; exact for integers below 2^53."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self._group)
        return total.tolist()

    def any(self, value: bool) -> bool:
        """Return whether it is true on any rank."""
        return self.sums(value)[0] > 0

    def decided(self, value: bool) -> bool:
        """Return rank 0's value: a decision by the clock is made once."""
        said = torch.tensor(value)
        dist.broadcast(said, src=0, group=self._group)
        return bool(said)

    def from_rank_0(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def done_by_rank_0(self, function: Callable[[], T]) -> T:
        """Return on every rank what rank 0's call returns.

        Raises:
            FastbudgetError: the call did; on all ranks, and so with the budget's end.
            RankFailedError: on the other ranks, where it raised anything else.
        """
        if self.rank != 0:
            found = self.from_rank_0(None)
            if isinstance(found, BaseException):
                found.__dict__["failed_first_on"] = 0  # who shows the traceback; see `RankFailures`
                raise found
            return found
        try:
            result = function()
        except (Exception, BudgetSpent) as error:
            self.from_rank_0(_for_other_ranks(error))
            raise
        return self.from_rank_0(result)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def raise_together(self, error: FastbudgetError | None) -> None:
        """Raise the error of the first rank that has one, on all of them."""
        for theirs in self.gather(error):
            if theirs is not None:
                raise theirs

    @staticmethod
    def add_up(value: torch.Tensor) -> None:
        """Sum a tensor over ranks in place, on the device it is on, without waiting for it there."""
        dist.all_reduce(value)


def _for_other_ranks(error: BaseException) -> BaseException:
    """Return what an error of rank 0 is on the others."""
    if isinstance(error, FastbudgetError | BudgetSpent):
        return error
    return RankFailedError(f"Rank 0 failed, so all ranks end: {type(error).__name__}: {error}")


def join_process_group(device: torch.device, timeout_s: float) -> None:
    """Make the default process group as the launcher says, unless the program has made one.

    Raises:
        InvalidInputError: the launcher's variables are missing, or a rank has no device of its own.
    """
    if dist.is_initialized():
        return
    environment = read_launch_environment()
    if device.type == "cuda":
        check_local_devices(environment, torch.cuda.device_count(), device)
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=timeout_s)
    )
    atexit.register(leave_process_group)


def leave_process_group() -> None:
    """Destroy the process group, if it is still there: NCCL warns of one that is left behind."""
    if dist.is_initialized():
        dist.destroy_process_group()


def check_local_devices(environment: LaunchEnvironment, num_devices: int, device: torch.device) -> None:
    """Raise InvalidInputError where this rank can't have a GPU for itself."""
    if environment.local_world_size > num_devices:
        raise InvalidInputError(
            f"{environment.local_world_size} ranks on this machine need as many GPUs, and torch sees {num_devices}; "
            f"start at most {num_devices} (`--nproc {num_devices}`), or train on the CPU."
        )
    if device.index is not None and device.index != environment.local_rank and environment.local_world_size > 1:
        raise InvalidInputError(
            f"The model of local rank {environment.local_rank} is on {device}; move each rank's to a GPU of its own: "
            "model.to(f\"cuda:{os.environ['LOCAL_RANK']}\")."
        )


def _check_devices(places: list[tuple[str, str]]) -> None:
    kinds = {torch.device(device).type for _, device in places}
    if len(kinds) > 1:
        raise InvalidInputError(f"All ranks must train on the same kind of device, got {', '.join(sorted(kinds))}.")
    (host, device), ranks = Counter(places).most_common(1)[0]
    if ranks > 1 and device.startswith("cuda"):
        raise InvalidInputError(
            f"{ranks} ranks on {host} have their models on {device}; move each rank's to a GPU of its own: "
            "model.to(f\"cuda:{os.environ['LOCAL_RANK']}\")."
        )
