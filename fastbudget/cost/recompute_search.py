"""Which blocks to recompute so that a step fits, at the least extra computation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .batch_search import fewest
from .trace.allocation_log import CATEGORIES, PHASES
from .trace.model_blocks import is_within
from .trace.tracing import Trace


@dataclass(frozen=True, kw_only=True)
class RecomputeChoice:
    """Blocks to recompute, and what a trace with them says.

    Attributes:
        blocks: names, in the model's order; the empty tuple where the step fits as it is.
        num_blocks: how many the model has.
        limit_bytes: what the peak had to stay within.
        peak_bytes: with these blocks recomputed.
        peak_without_bytes: with none.
        step_flops: of a step with these blocks recomputed.
        step_flops_without: with none.
    """

    blocks: tuple[str, ...]
    num_blocks: int
    limit_bytes: int
    peak_bytes: int
    peak_without_bytes: int
    step_flops: int
    step_flops_without: int

    @property
    def fits(self) -> bool:
        """Whether the step fits; if not, every block is recomputed."""
        return self.peak_bytes <= self.limit_bytes

    @property
    def extra_flops(self) -> int:
        """Floating-point operations of a step that recompute adds."""
        return self.step_flops - self.step_flops_without


@dataclass(frozen=True, kw_only=True)
class _Block:
    name: str
    saved_bytes: int  # of its activations alive at the end of the forward pass
    flops: int  # of its forward pass


def smallest_recompute(
    trace_of: Callable[[tuple[str, ...]], Trace],
    blocks: Sequence[str],
    *,
    limit_bytes: int,
    peak_of: Callable[[Trace], int] = lambda trace: trace.log.peak_bytes,
) -> RecomputeChoice:
    """Return the fewest blocks whose recompute brings a step's peak within a limit.

    Blocks are taken by the bytes they free for each operation they cost, and of equal ones the first, whose activations
    wait longest for the backward pass; at the end those are dropped again that turn out dispensable. Every set
    considered is traced, so what is said of the returned one is what its own trace says.

    Args:
        trace_of: Traces the step with the named blocks recomputed.
        blocks: Names of the model's blocks, in its order.
        limit_bytes: What the peak must stay within.
        peak_of: The peak of a trace.
    """
    traces: dict[tuple[str, ...], tuple[int, int]] = {}

    def peak_and_flops(chosen: Sequence[_Block]) -> tuple[int, int]:
        key = _in_order(chosen, blocks)
        if key not in traces:
            traces[key] = _summary(trace_of(key), peak_of)
        return traces[key]

    def fits(chosen: Sequence[_Block]) -> bool:
        return peak_and_flops(chosen)[0] <= limit_bytes

    plain = trace_of(())
    traces[()] = _summary(plain, peak_of)
    chosen: list[_Block] = []
    if blocks and not fits(()):
        ordered = _by_worth(plain, blocks)
        freed = np.cumsum([block.saved_bytes for block in ordered])
        guess = 1 + int(np.searchsorted(freed, traces[()][0] - limit_bytes))
        chosen = ordered[: fewest(lambda count: fits(ordered[:count]), guess, len(ordered))]
        chosen = _without_dispensable(sorted(chosen, key=lambda block: blocks.index(block.name)), fits)
    peak, flops = peak_and_flops(chosen)
    return RecomputeChoice(
        blocks=_in_order(chosen, blocks),
        num_blocks=len(blocks),
        limit_bytes=limit_bytes,
        peak_bytes=peak,
        peak_without_bytes=traces[()][0],
        step_flops=flops,
        step_flops_without=traces[()][1],
    )


def _in_order(chosen: Sequence[_Block], blocks: Sequence[str]) -> tuple[str, ...]:
    names = {block.name for block in chosen}
    return tuple(name for name in blocks if name in names)


def _summary(trace: Trace, peak_of: Callable[[Trace], int]) -> tuple[int, int]:
    return peak_of(trace), trace.operations.flops_in("forward", "loss", "backward", "optimizer", step=1)


def _by_worth(trace: Trace, blocks: Sequence[str]) -> list[_Block]:
    """Return the blocks, those first that free most bytes for each operation they cost."""
    log, operations = trace.log, trace.operations
    alive = log.live_storages(int(np.flatnonzero(log.phase == PHASES.index("forward"))[-1]))
    alive = alive[log.category[alive] == CATEGORIES.index("activation")]
    forward = np.flatnonzero((operations.phase == PHASES.index("forward")) & (operations.step == 1))
    weighed = []
    for name in blocks:
        in_log = [index for index, module in enumerate(log.modules) if is_within(module, name)]
        in_table = [index for index, module in enumerate(operations.modules) if is_within(module, name)]
        weighed.append(
            _Block(
                name=name,
                saved_bytes=int(log.size_bytes[alive[np.isin(log.module[alive], in_log)]].sum()),
                flops=int(operations.flops[forward[np.isin(operations.module[forward], in_table)]].sum()),
            )
        )
    # Rounded to 1%, so that equal blocks stay in their order whatever bytes they differ by (a shared mask).
    return sorted(weighed, key=lambda block: -round(100 * math.log((1 + block.saved_bytes) / (1 + block.flops))))


def _without_dispensable(chosen: list[_Block], fits: Callable[[Sequence[_Block]], bool]) -> list[_Block]:
    """Drop blocks that aren't needed, costly ones first: the last of a model may free nothing at the peak."""
    for cost in sorted({block.flops for block in chosen}, reverse=True):
        # The last of equal blocks frees least: where it is needed, so are the others.
        for block in reversed([block for block in chosen if block.flops == cost]):
            others = [other for other in chosen if other is not block]
            if not fits(others):
                break
            chosen = others
    return chosen
