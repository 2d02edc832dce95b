"""A model made ready for several ranks: replicated with DDP, or sharded with FSDP2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...core.errors import InvalidInputError
from ...cost import find_blocks
from .data_parallel import DataParallel


class RankModel(Protocol):
    """What the training step needs of a model that several ranks train."""

    @property
    def forward(self) -> nn.Module:
        """What is called on a batch."""

    is_sharded: bool
    runs_bare: bool  # whether a backward of the bare model leaves gradients that can be reduced afterwards

    def synced(self, last: bool) -> AbstractContextManager[Any]:
        """Return the context of one micro-batch's forward and backward: gradients are reduced in the last one's."""

    def reduce_gradients(self) -> None:
        """Average over ranks the gradients that the bare model's backward left on each."""

    def share_buffers(self) -> None:
        """Give all ranks rank 0's buffers, such as running means, which each updates from its own batches."""

    def load_targets(self, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """Return what a checkpoint must be loaded into: sharded tensors are filled in place."""

    def settle(self) -> None:
        """Free what a forward without backward leaves behind."""


def prepare_model(model: nn.Module, optimizer: torch.optim.Optimizer, options: DataParallel) -> RankModel:
    """Return the model ready to be trained by all ranks, from rank 0's weights. All ranks call it.

    Args:
        model: Changed in place where it is sharded, unless it is sharded already.
        optimizer: Of the model's parameters; follows them when they are sharded.
        options: Say how.

    Raises:
        InvalidInputError: the model is wrapped already, or the optimizer has taken steps on whole parameters.
    """
    from torch.distributed.fsdp import FSDPModule

    if isinstance(model, DistributedDataParallel):
        raise InvalidInputError("model is wrapped in DistributedDataParallel; give the bare model, model.module.")
    if isinstance(model, FSDPModule):
        return ShardedModel(model)
    if options.strategy == "ddp":
        return ReplicatedModel(model, options)
    _share(model)
    before = dict(model.named_parameters(remove_duplicate=False))
    shard(model, options)
    _follow(optimizer, before, dict(model.named_parameters(remove_duplicate=False)))
    return ShardedModel(model)


class ReplicatedModel:
    """The whole model on each rank; gradients are reduced while backward computes them."""

    is_sharded = False

    def __init__(self, model: nn.Module, options: DataParallel) -> None:
        device = next(model.parameters()).device
        chosen: dict[str, Any] = {} if options.bucket_cap_mb is None else {"bucket_cap_mb": options.bucket_cap_mb}
        self.forward = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            find_unused_parameters=options.find_unused_parameters,
            **chosen,
        )
        self.runs_bare = not options.static_graph  # whose hooks must see each backward
        # A static graph is recorded in the first backward, which must reduce gradients for that.
        self._is_recorded = not options.static_graph
        if options.comm_hook is not None:
            self.forward.register_comm_hook(*_hook(options.comm_hook))

    def synced(self, last: bool) -> AbstractContextManager[Any]:
        """See `RankModel`."""
        if last or not self._is_recorded:
            self._is_recorded = True
            return nullcontext()
        return self.forward.no_sync()

    def reduce_gradients(self) -> None:
        """See `RankModel`."""
        parameters = [parameter for parameter in self.forward.parameters() if parameter.requires_grad]
        used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        used = used.to(parameters[0].device)
        dist.all_reduce(used, dist.ReduceOp.MAX)
        pending = []
        for parameter, is_used in zip(parameters, used.tolist(), strict=True):
            if is_used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                pending.append((parameter.grad, dist.all_reduce(parameter.grad, async_op=True)))
        for gradient, work in pending:
            work.wait()
            gradient.div_(dist.get_world_size())

    def share_buffers(self) -> None:
        """Do nothing: DDP shares them before each forward, and rank 0's are saved."""

    def load_targets(self, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """Return nothing: each rank loads the whole."""
        return {}

    def settle(self) -> None:
        """Do nothing."""


def _hook(choice: Any) -> tuple[Any, Any]:
    if isinstance(choice, str):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        return None, getattr(default_hooks, f"{choice}_compress_hook")
    return choice


class ShardedModel:
    """Each rank holds a part of every parameter, and gathers a block's when its turn comes."""

    is_sharded = True
    runs_bare = False

    def __init__(self, model: Any) -> None:
        self.forward = model

    @contextmanager
    def synced(self, last: bool) -> Iterator[None]:
        """See `RankModel`."""
        self.forward.set_requires_gradient_sync(last)
        try:
            yield
        finally:
            self.forward.set_requires_gradient_sync(True)

    def reduce_gradients(self) -> None:
        """Not asked of it: each backward reduces them."""
        raise NotImplementedError("Sharded parameters have no gradients that aren't reduced.")

    def share_buffers(self) -> None:
        """See `RankModel`."""
        for buffer in self.forward.buffers():
            dist.broadcast(buffer, src=0)

    def load_targets(self, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """See `RankModel`."""
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        if not optimizer.state:
            get_optimizer_state_dict(self.forward, optimizer)  # makes the state, which a first step would make
        return {"model": self.forward.state_dict(), "optimizer": optimizer.state_dict()}

    def settle(self) -> None:
        """See `RankModel`."""
        self.forward.reshard()


def shard(model: nn.Module, options: DataParallel) -> None:
    """Shard each of the model's blocks, then the rest, over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    chosen: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": options.reshard_after_forward}
    if options.mp_policy is not None:
        chosen["mp_policy"] = options.mp_policy
    for block in find_blocks(model, options.blocks).values():
        fully_shard(block, **chosen)
    fully_shard(model, **chosen)


def _share(model: nn.Module) -> None:
    """Give all ranks rank 0's weights: each keeps its part of what it has, and they may have been drawn apart."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, src=0)


def _follow(
    optimizer: torch.optim.Optimizer, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]
) -> None:
    """Have an optimizer of the whole parameters optimize the sharded ones."""
    sharded = {id(parameter): after[name] for name, parameter in before.items()}
    if optimizer.state:
        raise InvalidInputError(
            "The optimizer has a state for the whole parameters, which are sharded now; give a new optimizer, or a "
            "name, and resume from a checkpoint."
        )
    for group in optimizer.param_groups:
        group["params"] = [sharded.get(id(parameter), parameter) for parameter in group["params"]]
