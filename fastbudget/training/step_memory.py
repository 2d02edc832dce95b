"""How a step is made to fit the memory: which blocks to recompute, and how large a micro-batch may be."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from ..core.errors import InvalidInputError, OutOfMemoryError, one_of
from ..core.units import format_bytes, format_count
from ..cost import CATEGORIES, Trace, fewest
from .batch_splitting import split_batch
from .batches import num_samples
from .step_prediction import StepPredictor

_log = logging.getLogger("fastbudget.training")

_Named = Literal["none", "full", "auto"]
Recompute = _Named | Sequence[str]

_KEPT = ("parameter", "gradient", "optimizer_state", "buffer")


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """What was chosen so that a step fits, and what its trace predicts.

    Attributes:
        recompute: names of the blocks that are recomputed.
        num_blocks: how many blocks the model has.
        micro_batch_size: most samples of a micro-batch; None: as the loader's batches are.
        limit_bytes: what the peak had to stay within.
        peak_bytes: predicted with this choice.
        peak_without_bytes: predicted with whole batches and nothing recomputed.
        flops: of the step of one micro-batch, without recompute.
        extra_flops: that recompute adds to it.
        measured_peak_bytes: reserved by the real step on a GPU; None on the CPU.
    """

    recompute: tuple[str, ...]
    num_blocks: int
    micro_batch_size: int | None
    limit_bytes: int
    peak_bytes: int
    peak_without_bytes: int
    flops: int
    extra_flops: int
    measured_peak_bytes: int | None = None

    def __str__(self) -> str:
        parts = []
        if self.micro_batch_size is not None:
            parts.append(f"micro-batches of {self.micro_batch_size}")
        if self.recompute:
            names = ", ".join(self.recompute[:3]) + (", …" if len(self.recompute) > 3 else "")
            share = self.extra_flops / self.flops if self.flops else 0.0
            parts.append(
                f"recompute of {len(self.recompute)} of {self.num_blocks} blocks ({names}), which adds "
                f"{format_count(self.extra_flops, 'FLOP')} ({share:.1%}) to each micro-batch"
            )
        return (
            f"Memory of a step: {' and '.join(parts) or 'as it is'}; predicted peak {format_bytes(self.peak_bytes)}, "
            f"without {format_bytes(self.peak_without_bytes)}, limit {format_bytes(self.limit_bytes)}."
        )


def check_recompute(recompute: Recompute) -> None:
    """Raise InvalidInputError unless it is ``"none"``, ``"full"``, ``"auto"`` or a list of names."""
    if isinstance(recompute, str):
        if recompute not in get_args(_Named):
            raise InvalidInputError(
                f"recompute must be one of {one_of(get_args(_Named))} or a list of names of modules, got {recompute!r}."
            )
    elif not all(isinstance(name, str) for name in recompute):
        raise InvalidInputError(f"recompute must list names of modules, got {list(recompute)!r}.")


def check_micro_batch_size(size: int | Literal["auto"] | None) -> None:
    """Raise InvalidInputError unless it is ``"auto"``, None or at least 1."""
    if size is None or size == "auto":
        return
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidInputError(f"micro_batch_size must be 'auto', or a whole number of at least 1, got {size!r}.")


def fit_step(
    predictor: StepPredictor,
    batch: Any,
    *,
    recompute: Sequence[str] | Literal["auto"],
    micro_batch_size: int | Literal["auto"] | None,
    accumulates: bool = False,
) -> StepMemory:
    """Return how a step fits the memory, by traces of it; what is chosen is traced, and logged.

    Smaller micro-batches cost less than recompute, so with both ``"auto"`` recompute comes in only where not even
    micro-batches of one sample fit.

    Args:
        predictor: Of the run's steps.
        batch: As the loader yields them.
        recompute: Names of modules; ``"auto"``: the fewest repeated blocks.
        micro_batch_size: ``"auto"``: the largest that fits, cut evenly.
        accumulates: Whether a step has several batches.

    Raises:
        OutOfMemoryError: a limit was given and nothing of this fits it.
    """
    samples = num_samples(batch)
    named = () if recompute == "auto" else predictor.names_of(recompute)

    def part(count: int) -> Any:
        return max(split_batch(batch, math.ceil(samples / count)), key=num_samples)

    @cache
    def traced(count: int) -> Trace:
        return predictor.trace(part(count), recompute=named, accumulates=accumulates or count > 1)

    def fits(count: int) -> bool:
        return predictor.peak_bytes(traced(count)) <= predictor.limit_bytes

    count = 1
    if micro_batch_size == "auto":
        if not fits(1):
            count = fewest(fits, _guess(traced(1), predictor), samples)
        size: int | None = math.ceil(samples / count)
    else:
        size = micro_batch_size
        count = 1 if size is None else math.ceil(samples / size)
    whole = predictor.trace(batch, accumulates=accumulates)
    trace = traced(count)
    names, peak = named, predictor.peak_bytes(trace)
    plain = _flops(trace if not named else predictor.trace(part(count), accumulates=accumulates or count > 1))
    extra = _flops(trace) - plain
    if recompute == "auto" and peak > predictor.limit_bytes:
        choice = predictor.smallest_recompute(part(count), accumulates=accumulates or count > 1)
        names, peak, extra = choice.blocks, choice.peak_bytes, choice.extra_flops
    found = StepMemory(
        recompute=names,
        num_blocks=len(predictor.blocks),
        micro_batch_size=size,
        limit_bytes=predictor.limit_bytes,
        peak_bytes=peak,
        peak_without_bytes=predictor.peak_bytes(whole),
        flops=plain,
        extra_flops=extra,
    )
    _log.info("%s", found)
    if peak > predictor.limit_bytes:
        text = (
            f"A step is predicted to need {format_bytes(peak)}, more than the limit of "
            f"{format_bytes(predictor.limit_bytes)}. {what_would_fit(predictor, batch, names)}"
        )
        if predictor.is_limit_given:
            raise OutOfMemoryError(text)
        _log.warning("%s Micro-batches will be halved should memory run out.", text)
    return found


def what_would_fit(predictor: StepPredictor, batch: Any, recompute: Sequence[str]) -> str:
    """Return, in words, what other settings are predicted to need, the smallest first.

    Args:
        predictor: Of the run's steps.
        batch: As the loader yields them.
        recompute: Names of what is recomputed already.
    """
    one = split_batch(batch, 1)[0]
    blocks, precision = predictor.blocks, predictor.precision
    options: dict[str, tuple[Sequence[str], str]] = {"micro_batch_size=1": (recompute, precision)}
    if set(blocks) - set(recompute):
        options["micro_batch_size=1, recompute='full'"] = (blocks, precision)
    if precision == "fp32":
        options["micro_batch_size=1, precision='bf16-mixed'"] = (recompute, "bf16-mixed")
        if set(blocks) - set(recompute):
            options["micro_batch_size=1, recompute='full', precision='bf16-mixed'"] = (blocks, "bf16-mixed")
    needed = {}
    for option, (names, kind) in options.items():
        trace = predictor.trace(one, recompute=names, accumulates=num_samples(batch) > 1, precision=kind)
        needed[option] = predictor.peak_bytes(trace)
    told = "; ".join(f"{option}: {format_bytes(peak)}" for option, peak in sorted(needed.items(), key=lambda o: o[1]))
    some_fit = any(peak <= predictor.limit_bytes for peak in needed.values())
    return f"Predicted peaks: {told}." + (
        "" if some_fit else " None of these fits: use a smaller model or optimizer state, or shard them over devices."
    )


def _guess(trace: Trace, predictor: StepPredictor) -> int:
    """Return in how many parts a batch might fit, activations being proportional to it."""
    log = trace.log
    by_category = log.bytes_by_category(log.event_at_peak)
    kept = sum(by_category[category] for category in _KEPT if category in CATEGORIES)
    room = predictor.limit_bytes - kept
    return math.ceil((predictor.peak_bytes(trace) - kept) / room) if room > 0 else 2**16


def _flops(trace: Trace) -> int:
    return trace.operations.flops_in("forward", "loss", "backward", "optimizer", step=1)
