"""Peak memory of a transformer's training step, per rank and pipeline stage, from formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from ...core.errors import InvalidInputError
from ...hardware.devices import Device
from ..allocator.allocator_settings import AllocatorConfig
from ..allocator.allocator_simulation import simulate_allocator
from ..device_overhead import cublas_workspace_bytes, overhead_bytes
from .inference_script import inference_events
from .pipeline_stages import PipelineStage, pipeline_stages
from .training_layout import TrainingLayout
from .training_step_script import TrainingStepScript
from .transformer_shape import TransformerShape

# What a prediction may miss by before a step that "fits" runs out: see the scoreboard's 90th percentile.
MARGIN = 0.15
_LARGEST_MICRO_BATCH = 4096


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Peak memory of a rank of one pipeline stage. The four numbers are different things.

    Attributes:
        stage: its place, from 0.
        layers: layers it holds.
        allocated_bytes: the most bytes of tensors alive at once, unrounded.
        active_bytes: the same in blocks of PyTorch's caching allocator.
        reserved_bytes: what that allocator holds from the device at most.
        device_bytes: reserved bytes, CUDA context and communication buffers.
        by_category: bytes at the peak of allocated memory for each of ``ANALYTIC_CATEGORIES``.
    """

    stage: int
    layers: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    device_bytes: int
    by_category: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class TransformerMemory:
    """Peak memory of the rank that needs most, and of every stage's.

    Attributes:
        allocated_bytes: see :class:`StageMemory`; of the stage with the most device memory, as all here.
        active_bytes: see there.
        reserved_bytes: see there.
        device_bytes: see there.
        by_category: see there.
        per_stage: one entry per pipeline stage.
        capacity_bytes: the device's memory.
        fits: ``"yes"``, ``"no"``, or ``"at risk"`` when it fits by less than ``margin``.
        margin: relative error of ``device_bytes`` that the verdict allows for.
        analytic: computed from formulas, not from a traced module.
        notes: what was modeled how.
    """

    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    device_bytes: int
    by_category: dict[str, int]
    per_stage: tuple[StageMemory, ...]
    capacity_bytes: int
    fits: str
    margin: float
    analytic: bool = True
    notes: tuple[str, ...] = ()
    search: Callable[[], int] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def largest_micro_batch(self) -> int:
        """Most sequences per forward pass with the verdict ``"yes"`` or ``"at risk"``; 0: none.

        Simulates other sizes when first asked for.
        """
        assert self.search is not None
        return self.search()


def estimate_transformer_memory(
    shape: TransformerShape, layout: TrainingLayout, device: Device, *, allocator: AllocatorConfig | None = None
) -> TransformerMemory:
    """Return the peak memory of a step.

    Args:
        shape: the model.
        layout: how it is trained or run.
        device: what each rank runs on.
        allocator: options of PyTorch's allocator; None: its defaults.

    Raises:
        InvalidInputError: the layout can't divide the model.
    """
    layout.check(shape)
    stages = _stages(shape, layout, device, allocator)
    worst = max(stages, key=lambda stage: stage.device_bytes)
    return TransformerMemory(
        allocated_bytes=worst.allocated_bytes,
        active_bytes=worst.active_bytes,
        reserved_bytes=worst.reserved_bytes,
        device_bytes=worst.device_bytes,
        by_category=worst.by_category,
        per_stage=stages,
        capacity_bytes=device.memory_bytes,
        fits=fits_verdict(worst.device_bytes, device.memory_bytes),
        margin=MARGIN,
        notes=_notes(shape, layout),
        search=partial(_largest_micro_batch, shape, layout, device, allocator, worst.device_bytes),
    )


def fits_verdict(device_bytes: int, capacity_bytes: int) -> str:
    """Return ``"yes"``, ``"no"`` or ``"at risk"``."""
    if device_bytes > capacity_bytes:
        return "no"
    return "at risk" if device_bytes * (1 + MARGIN) > capacity_bytes else "yes"


def _stages(
    shape: TransformerShape, layout: TrainingLayout, device: Device, allocator: AllocatorConfig | None
) -> tuple[StageMemory, ...]:
    return tuple(_stage(shape, layout, stage, device, allocator) for stage in pipeline_stages(shape, layout))


def _stage(
    shape: TransformerShape,
    layout: TrainingLayout,
    stage: PipelineStage,
    device: Device,
    allocator: AllocatorConfig | None,
) -> StageMemory:
    workspace = cublas_workspace_bytes(device)
    if layout.mode == "train":
        events = TrainingStepScript(shape, layout, stage, workspace).build()
    else:
        events = inference_events(shape, layout, stage, workspace)
    allocated, by_category = events.peak()
    try:
        replay = simulate_allocator(events.storage, events.delta_bytes, allocator)
    except InvalidInputError as error:  # sizes beyond what a device could ever hold
        raise InvalidInputError(
            f"The step allocates more than the allocator's simulation can count: {error}"
        ) from error
    return StageMemory(
        stage=stage.index,
        layers=len(stage.blocks),
        allocated_bytes=allocated,
        active_bytes=replay.peak_active_bytes,
        reserved_bytes=replay.peak_reserved_bytes,
        device_bytes=replay.peak_reserved_bytes + overhead_bytes(layout),
        by_category=by_category,
    )


def _with_micro_batch(layout: TrainingLayout, size: int) -> TrainingLayout:
    return replace(
        layout,
        micro_batch_size=size,
        global_batch_size=size * layout.data_parallel * layout.micro_batches,
    )


def _largest_micro_batch(
    shape: TransformerShape,
    layout: TrainingLayout,
    device: Device,
    allocator: AllocatorConfig | None,
    device_bytes: int,
) -> int:
    """Search the largest micro-batch that fits, with as many micro-batches as given.

    Peak memory is close to linear in it, so a straight line guesses and the answer is verified.
    """
    capacity = device.memory_bytes

    def peak(size: int) -> int:
        changed = _with_micro_batch(layout, size)
        return max(stage.device_bytes for stage in _stages(shape, changed, device, allocator))

    low, low_peak = 0, 0
    high, high_peak = layout.micro_batch_size, device_bytes
    while high_peak <= capacity:
        low, low_peak = high, high_peak
        if high >= _LARGEST_MICRO_BATCH:
            return high
        high = min(2 * high, _LARGEST_MICRO_BATCH)
        high_peak = peak(high)
    while high - low > 1:
        guess = low + int((high - low) * (capacity - low_peak) / (high_peak - low_peak)) if low else (high + low) // 2
        middle = min(max(guess, low + 1), high - 1)
        middle_peak = peak(middle)
        if middle_peak <= capacity:
            low, low_peak = middle, middle_peak
        else:
            high, high_peak = middle, middle_peak
        if low and high - low > 1 and (middle_peak <= capacity) and peak(low + 1) > capacity:
            break
    return low


def _notes(shape: TransformerShape, layout: TrainingLayout) -> tuple[str, ...]:
    notes = [
        "Computed from formulas, not from a traced module.",
        f"States are where {layout.framework} puts them; precision {layout.precision}.",
        "Reserved memory: a synthetic step replayed through a simulation of PyTorch's caching allocator.",
    ]
    if layout.loss in ("eager", "shifted") and shape.has_head and layout.mode == "train":
        notes.append("The loss makes float32 copies of the logits.")
    if any(block.mlp.experts for block in shape.all_blocks):
        notes.append("Tokens are assumed to spread evenly over the experts.")
    if layout.precision in ("fp8-mixed", "fp4-mixed"):
        notes.append("Activations are counted as saved in 16 bits.")
    if layout.offload != "none":
        notes.append("Memory of the host is not counted.")
    if shape.encoder_blocks:
        notes.append("The encoder's sequence is taken to be as long as the decoder's.")
    return tuple(notes)
