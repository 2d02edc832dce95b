"""How a model is trained by several ranks, each on its part of every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ...core.errors import InvalidInputError, one_of

Strategy = Literal["ddp", "fsdp2"]
Batches = Literal["auto", "global", "per_rank"]
EvaluateOn = Literal["rank_0", "all"]
CommHook = str | tuple[Any, Callable[..., Any]]

COMM_HOOKS = ("fp16", "bf16")


@dataclass(frozen=True, kw_only=True)
class DataParallel:
    """Options of data-parallel training; the defaults are right for most models.

    Args:
        strategy: ``"ddp"``: each rank holds the whole model (`torch.nn.parallel.DistributedDataParallel`);
            ``"fsdp2"``: parameters, gradients and the optimizer's state are sharded
            (`torch.distributed.fsdp.fully_shard`).
        batches: What ``train_data`` yields. ``"global"``: the batch of all ranks together, the same on each, of which
            each takes its part; ``"per_rank"``: each rank's own. ``"auto"``: per rank where the loader says so
            (``rank=``/``world_size=``, a DistributedSampler) or the ranks' first batches differ, else global.
        evaluate_on: ``"rank_0"``: the others wait, however long it takes; ``"all"``: all ranks call ``evaluate``, and
            rank 0's numbers count. None: rank 0 for DDP, all for FSDP2, whose forward needs all ranks.
        bucket_cap_mb: DDP: MiB of gradients reduced at once; None: torch's default (25).
        static_graph: DDP: the same parameters take part in each step, in the same order.
        gradient_as_bucket_view: DDP: gradients are views of the buckets, which saves a copy of them.
        find_unused_parameters: DDP: look in each step for parameters that take no part.
        comm_hook: DDP: gradients are reduced in ``"fp16"`` or ``"bf16"``, or by a pair ``(state, hook)`` as
            ``register_comm_hook`` takes it.
        blocks: FSDP2: names or classes of the modules that are sharded one by one; None: those that `find_blocks`
            finds.
        reshard_after_forward: FSDP2: free a block's whole parameters after its forward; False trades memory for speed.
        mp_policy: FSDP2: a ``MixedPrecisionPolicy``; None: parameters keep their type.
        timeout_s: How long a collective of the training may take before the run fails.

    Raises:
        InvalidInputError: an unknown choice, or an option of the other strategy.
    """

    strategy: Strategy = "ddp"
    batches: Batches = "auto"
    evaluate_on: EvaluateOn | None = None
    bucket_cap_mb: float | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = True
    find_unused_parameters: bool = False
    comm_hook: CommHook | None = None
    blocks: Sequence[str] | None = None
    reshard_after_forward: bool = True
    mp_policy: Any = None
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name, known in (("strategy", get_args(Strategy)), ("batches", get_args(Batches)),
                            ("evaluate_on", (None, *get_args(EvaluateOn)))):  # fmt: skip
            if getattr(self, name) not in known:
                raise InvalidInputError(f"{name} must be one of {one_of(known)}, got {getattr(self, name)!r}.")
        if self.bucket_cap_mb is not None and not self.bucket_cap_mb > 0:
            raise InvalidInputError(f"bucket_cap_mb must be above 0 MiB, got {self.bucket_cap_mb}.")
        if not self.timeout_s > 0:
            raise InvalidInputError(f"timeout_s must be above 0 seconds, got {self.timeout_s}.")
        if self.comm_hook is not None and self.comm_hook not in COMM_HOOKS and not _is_hook(self.comm_hook):
            raise InvalidInputError(
                f"comm_hook must be {one_of(COMM_HOOKS)} or a pair (state, hook), got {self.comm_hook!r}."
            )
        defaults = DataParallel.__dataclass_fields__
        for name in _OTHERS_OPTIONS[self.strategy]:
            if getattr(self, name) != defaults[name].default:
                raise InvalidInputError(f"{name} is no option of strategy {self.strategy!r}; leave it out.")
        if self.strategy == "fsdp2" and self.evaluate_on == "rank_0":
            raise InvalidInputError(
                "evaluate_on='rank_0' can't be with strategy 'fsdp2': a forward needs the shards of all ranks; use "
                "'all'."
            )

    @property
    def evaluates_on_all(self) -> bool:
        """Whether every rank calls ``evaluate``."""
        return (self.evaluate_on or ("all" if self.strategy == "fsdp2" else "rank_0")) == "all"


_OTHERS_OPTIONS = {
    "fsdp2": ("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", "find_unused_parameters", "comm_hook"),
    "ddp": ("blocks", "reshard_after_forward", "mp_policy"),
}


def _is_hook(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and callable(value[1])
