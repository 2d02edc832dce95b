"""One model over several ranks, a part of its blocks on each, with micro-batches flowing through (pipelining)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from ..core.errors import InvalidInputError, one_of
from .losses import IGNORED, count_targets
from .stage_split import block_flops, block_parameters, chain_of, check_ties, split_evenly

Schedule = Literal["1f1b", "gpipe"]
_SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class ModelParallel:
    """This rank's stage of a model that doesn't fit one device.

    The model is a chain of blocks, each called with what the one before returned. The ranks of the process group take
    consecutive blocks, so that the largest share is as small as can be. A step cuts its batch into micro-batches, which
    flow through the stages one after the other (`torch.distributed.pipelining`), and leaves on each rank the gradient
    of the mean loss over the whole batch. All ranks make it at once and call the same methods in the same order, with
    the same batches::

        model = fb.training.ModelParallel(network, loss=F.cross_entropy, num_micro_batches=8)
        optimizer = torch.optim.AdamW(model.parameters())
        for inputs, targets in guard.steps(loader):
            loss = model.step(inputs, targets)
            optimizer.step()
            optimizer.zero_grad()

    Args:
        model: The whole model, the same on each rank; an ``nn.Sequential``, or any module with ``blocks``. This rank's
            blocks are moved to ``device``; the others can be let go.
        loss: ``loss(outputs, targets) -> scalar``, the mean over the targets; integer targets of -100 don't count.
        num_micro_batches: Into how many equal parts a batch is cut; more keep the stages busier: a share of
            ``(stages - 1) / (num_micro_batches + stages - 1)`` is idle (Huang et al. 2019, arXiv:1811.06965).
        blocks: Names of the chain's modules, in the order in which they are called; the name of a list means its
            members. None: the members of the ``nn.Sequential``.
        balance: What the stages share evenly: ``"parameters"``; ``"flops"`` of a forward pass of ``example_inputs``;
            or how many blocks each stage takes.
        example_inputs: A batch's inputs, for ``"flops"``.
        schedule: ``"1f1b"`` holds activations of as many micro-batches as there are stages after; ``"gpipe"`` of all.
        device: Of this rank; None: the current GPU, or the CPU.

    Raises:
        InvalidInputError: no process group, fewer blocks than ranks, a parameter that two stages would share, or
            blocks that aren't the whole model.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[[Any, torch.Tensor], torch.Tensor],
        num_micro_batches: int,
        blocks: Sequence[str] | None = None,
        balance: Literal["parameters", "flops"] | Sequence[int] = "parameters",
        example_inputs: torch.Tensor | None = None,
        schedule: Schedule = "1f1b",
        device: torch.device | str | None = None,
    ) -> None:
        if schedule not in get_args(Schedule):
            raise InvalidInputError(f"schedule must be one of {one_of(get_args(Schedule))}, got {schedule!r}.")
        if isinstance(num_micro_batches, bool) or not isinstance(num_micro_batches, int) or num_micro_batches < 1:
            raise InvalidInputError(f"num_micro_batches must be at least 1, got {num_micro_batches!r}.")
        if not (dist.is_available() and dist.is_initialized()):
            raise InvalidInputError(
                "ModelParallel needs the ranks' process group: start the script with torchrun and call "
                "torch.distributed.init_process_group() first."
            )
        self.rank, self.num_stages = dist.get_rank(), dist.get_world_size()
        if schedule == "1f1b" and num_micro_batches < self.num_stages:
            raise InvalidInputError(
                f"num_micro_batches must be at least the {self.num_stages} stages with schedule '1f1b', got "
                f"{num_micro_batches}; raise it, or use 'gpipe'."
            )
        chain = chain_of(model, blocks)
        if isinstance(balance, str):
            if balance == "flops":
                if example_inputs is None:
                    raise InvalidInputError("balance='flops' needs example_inputs, the inputs of a batch.")
                weights = block_flops(chain, example_inputs)
            elif balance == "parameters":
                weights = block_parameters(chain)
            else:
                raise InvalidInputError(f"balance must be 'parameters', 'flops' or numbers of blocks, got {balance!r}.")
            self.stages = split_evenly(list(chain), weights, self.num_stages)
        else:
            self.stages = split_evenly(list(chain), list(balance), self.num_stages, given=True)
        check_ties(chain, self.stages)
        self.device = torch.device(device) if device is not None else _own_device()
        self._blocks = {name: chain[name] for name in self.stages[self.rank]}
        self.module = nn.Sequential(*self._blocks.values()).to(self.device)
        self.num_micro_batches = num_micro_batches
        self._loss, self._schedule_class = loss, _SCHEDULES[schedule]
        self._whole = 1
        self._runs: dict[tuple[Any, ...], Any] = {}

    @property
    def is_last(self) -> bool:
        """Whether this rank computes the loss."""
        return self.rank == self.num_stages - 1

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Add the gradient of the whole batch's mean loss to this rank's parameters; return that loss on each rank.

        Args:
            inputs: The batch's, ``[B, …]``; B is a multiple of ``num_micro_batches``.
            targets: The batch's, ``[B, …]``.

        Raises:
            InvalidInputError: the batch can't be cut evenly, or none of its targets counts.
        """
        samples = len(inputs)
        if samples % self.num_micro_batches or not samples or len(targets) != samples:
            raise InvalidInputError(
                f"A batch of {samples} samples and {len(targets)} targets can't be cut into {self.num_micro_batches} "
                "equal micro-batches; use a batch size that is a multiple of num_micro_batches (drop_last=True)."
            )
        self._whole = count_targets((None, targets))
        if not self._whole:
            raise InvalidInputError("No target of the batch counts (all are -100): its mean loss doesn't exist.")
        # Stages learn the shapes of what they exchange once, so each shape has a schedule of its own.
        key = (inputs.shape, inputs.dtype, targets.shape)
        if key not in self._runs:
            stage = PipelineStage(self.module, self.rank, self.num_stages, self.device)
            self._runs[key] = self._schedule_class(stage, self.num_micro_batches, loss_fn=self._micro_batch_loss)
        arguments = (inputs.to(self.device),) if self.rank == 0 else ()
        losses: list[torch.Tensor] = []
        if self.is_last:
            self._runs[key].step(*arguments, target=targets.to(self.device), losses=losses)
            loss = torch.stack([part.detach().float() for part in losses]).mean()
        else:
            self._runs[key].step(*arguments)
            loss = torch.zeros((), device=self.device)
        dist.broadcast(loss, src=self.num_stages - 1)
        return loss

    def _micro_batch_loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Weigh a micro-batch's mean by its targets; the schedule divides by the number of micro-batches."""
        loss = self._loss(outputs, targets)
        if targets.is_floating_point():
            return loss
        count = (targets != IGNORED).sum()
        weighed = loss * (count * self.num_micro_batches / self._whole)
        return torch.where(count > 0, weighed, torch.zeros_like(loss))  # the mean of no targets is NaN

    @torch.no_grad()
    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the model's outputs of a whole batch on each rank, without gradients: for evaluations."""
        passed = inputs
        for stage in range(self.num_stages):
            held = [self.module(passed.to(self.device)).cpu() if stage == self.rank else None]
            dist.broadcast_object_list(held, src=stage)
            passed = held[0]  # type: ignore[assignment]
        return passed

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the gradients of all stages so that their norm together is at most this; return the norm before."""
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        square = torch.nn.utils.get_total_norm(gradients).square().to(self.device)
        dist.all_reduce(square)
        norm = square.sqrt()
        torch.nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, norm)
        return norm

    # -- as a module -----------------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return this rank's parameters, for its optimizer."""
        return self.module.parameters()

    def train(self, mode: bool = True) -> ModelParallel:
        """Set this rank's blocks to train or evaluate."""
        self.module.train(mode)
        return self

    def eval(self) -> ModelParallel:
        """Set this rank's blocks to evaluate."""
        return self.train(False)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the whole model's state on each rank, on the CPU, by the names of the model that was split."""
        own = {
            f"{name}.{key}": value.detach().cpu()
            for name, block in self._blocks.items()
            for key, value in block.state_dict().items()
        }
        parts: list[Any] = [None] * self.num_stages
        dist.all_gather_object(parts, own)
        return {name: value for part in parts for name, value in part.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load this rank's part of a whole model's state, however many stages it was saved from.

        Raises:
            InvalidInputError: it lacks a part, or another shape was saved.
        """
        for name, block in self._blocks.items():
            prefix = f"{name}."
            own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            try:
                block.load_state_dict(own)
            except RuntimeError as error:
                raise InvalidInputError(f"The state doesn't fit block {name!r}: {error}") from error


def _own_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
