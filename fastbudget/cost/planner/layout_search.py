"""The fastest layout on given devices that fits their memory.

For one device, number of devices and precision, everything a job pays for grows with the time of a step: hours,
device-hours, energy and money. So the fastest layout that fits memory is also the cheapest, and the walk below, from
the fastest on, may stop at the first that fits. Nothing is sampled: the result is that of trying all layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...hardware.devices import Device
from ..runtime.links import Links
from ..runtime.rates import Rates
from ..runtime.step_time import step_parts
from ..transformer.memory_bound import memory_bound
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_memory import MARGIN, TransformerMemory, estimate_transformer_memory
from ..transformer.transformer_shape import TransformerShape

_WORTH_A_RISK = 0.01


@dataclass(frozen=True, kw_only=True)
class FastestLayouts:
    """What a walk over layouts found.

    Attributes:
        fitting: the fastest whose memory's verdict is ``"yes"``; None: there is none.
        risky: the fastest with the verdict ``"at risk"``, where that is faster than ``fitting`` by 1% or more.
        fastest: the fastest of all, whether it fits or not, with its seconds; None: there are no layouts.
        count: layouts there were.
        too_large: those that were tried and don't fit: all that are faster than what was found.
        leanest: the layout that needs least memory of those too large.
    """

    fitting: TrainingLayout | None
    risky: TrainingLayout | None
    fastest: tuple[float, TrainingLayout] | None
    count: int
    too_large: int
    leanest: TrainingLayout | None


class MemoryVerdicts:
    """Whether layouts of one model fit one device. Layouts that differ only in what memory ignores share an answer."""

    def __init__(self, shape: TransformerShape, device: Device) -> None:
        self._shape, self._device = shape, device
        self._bounds: dict[tuple[object, ...], int] = {}
        self._estimates: dict[tuple[object, ...], TransformerMemory] = {}

    def bound(self, layout: TrainingLayout) -> int:
        """Return a lower bound of the device memory, in bytes."""
        key = memory_key(layout)
        if key not in self._bounds:
            self._bounds[key] = memory_bound(self._shape, layout, self._device)
        return self._bounds[key]

    def estimate(self, layout: TrainingLayout) -> TransformerMemory:
        """Return the full estimate."""
        key = memory_key(layout)
        if key not in self._estimates:
            self._estimates[key] = estimate_transformer_memory(self._shape, layout, self._device)
        return self._estimates[key]


def memory_key(layout: TrainingLayout) -> tuple[object, ...]:
    """Return what a layout's memory depends on, among layouts of one job."""
    # ZeRO divides by the ranks; without it there only are others or none. More micro-batches than a pipeline can
    # hold at once, or than show that gradients are accumulated, change nothing.
    ranks = min(layout.shard_ranks, 2) if layout.sharding == "none" else layout.shard_ranks
    return (
        layout.tensor_parallel,
        layout.pipeline_parallel,
        layout.virtual_pipeline,
        layout.context_parallel,
        layout.expert_parallel,
        layout.sharding,
        layout.recompute,
        layout.precision,
        layout.micro_batch_size,
        ranks,
        layout.data_parallel > 1,
        min(layout.micro_batches, 3 * layout.pipeline_parallel + 1),
    )


def fastest_layouts(
    shape: TransformerShape,
    layouts: Iterable[TrainingLayout],
    verdicts: MemoryVerdicts,
    capacity_bytes: int,
    rates: Rates,
    links: Links,
) -> FastestLayouts:
    """Walk over layouts from the fastest to the first that fits with the margin to spare.

    Args:
        shape: The model.
        layouts: On one number of devices; of equally fast ones the earlier wins.
        verdicts: Of that model on that device.
        capacity_bytes: The device's memory.
        rates: Of the device.
        links: Of the device.
    """
    timed = _by_time(shape, layouts, rates, links)
    risky = fitting = leanest = None
    too_large, least = 0, 0
    risky_seconds = gain = 0.0
    for seconds, layout in timed:
        bound = verdicts.bound(layout)
        if bound <= capacity_bytes:
            if risky is not None and bound * (1 + MARGIN) > capacity_bytes:
                continue  # fits at best as narrowly as a faster one
            verdict = verdicts.estimate(layout).fits
            if verdict == "yes":
                fitting, gain = layout, 1 - risky_seconds / seconds
                break
            if verdict == "at risk":
                if risky is None:
                    risky, risky_seconds = layout, seconds
                continue
        too_large += 1
        if leanest is None or bound < least:
            leanest, least = layout, bound
    return FastestLayouts(
        fitting=fitting,
        risky=risky if fitting is None or gain >= _WORTH_A_RISK else None,
        fastest=timed[0] if timed else None,
        count=len(timed),
        too_large=too_large,
        leanest=leanest,
    )


def _by_time(
    shape: TransformerShape, layouts: Iterable[TrainingLayout], rates: Rates, links: Links
) -> Sequence[tuple[float, TrainingLayout]]:
    timed = [(sum(step_parts(shape, layout, rates, links).values()), layout) for layout in layouts]
    # Times that differ by rounding are equal: the sort is stable and keeps the simpler layout in front.
    return sorted(timed, key=lambda pair: float(f"{pair[0]:.9g}"))
