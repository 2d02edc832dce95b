"""Write down what one rank allocates in two training steps, as its framework would order it.

The sequence is made from formulas, not traced. It exists so that the peak is found where it occurs (at the
loss, inside a layer's backward pass, or in the optimizer step) and so that the allocator's simulation can
say what it costs to hold such a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from .layer_activations import ActivationModel, LayerActivations
from .model_states import ParameterGroup, StateBytes, block_group, embedding_group, head_group
from .pipeline_stages import PipelineStage
from .stage_events import StageEvents
from .training_layout import TrainingLayout
from .transformer_shape import TransformerShape

# DeepSpeed's defaults, in elements: deepspeed/runtime/zero/config.py.
_DEEPSPEED_BUCKET = 500_000_000
_DEEPSPEED_MAX_LIVE = 1_000_000_000
# Parts that a chunked loss divides the tokens into; Liger and cut cross-entropy choose about as many.
_LOSS_CHUNKS = 16


@dataclass
class _Pass:
    """What a forward pass of one micro-batch leaves for its backward pass."""

    root: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    layers: list[list[int]] = field(default_factory=list)
    final: list[int] = field(default_factory=list)
    logits: list[int] = field(default_factory=list)


def keeps_gathered(states: StateBytes) -> bool:
    """Return whether gathered weights stay until a step's last micro-batch."""
    layout = states.layout
    return states.gathers and (
        layout.pipeline_parallel > 1 or (layout.sharding == "zero2" and layout.framework == "pytorch")
    )


def gathered_bytes(states: StateBytes, group: ParameterGroup) -> int:
    """Return the bytes of a group's unsharded weights in the compute type; 0 where they are not gathered."""
    layout = states.layout
    if not states.gathers or layout.framework == "deepspeed":
        return 0
    return layout.compute_bytes * group.size if layout.trains_all else states.frozen_bytes(group)


def autocasts_weights(states: StateBytes) -> bool:
    """Return whether autocast makes 16-bit copies of float32 matrices."""
    layout = states.layout
    mixed = layout.precision.endswith("-mixed") and layout.framework == "pytorch" and layout.trains_all
    return mixed and not states.gathers


def communication_buffers(states: StateBytes, *, trained: int, total: int, largest: int) -> list[int]:
    """Return the sizes in bytes of the buffers that a rank always holds to reduce gradients and gather weights.

    Args:
        states: Of the layout.
        trained: Elements of the stage that have gradients.
        total: All its elements.
        largest: Elements of its largest group.
    """
    layout = states.layout
    if layout.shard_ranks == 1:
        return []
    width = layout.compute_bytes
    if layout.framework == "pytorch" and layout.sharding in ("none", "zero1"):
        # Distributed data parallel reduces copies of the gradients in buckets (gradient_as_bucket_view=False).
        return [(states.gradient_bytes if layout.trains_all else 4) * trained]
    if layout.framework != "deepspeed":
        return []
    # Reduction overlaps the backward pass, which takes two buckets.
    sizes = [2 * width * min(_DEEPSPEED_BUCKET, trained)]
    if layout.sharding == "zero3" or layout.offload == "all":
        # The limit stops prefetching; what a module needs now is gathered all the same.
        sizes.append(width * min(_DEEPSPEED_MAX_LIVE + largest, total))
    elif layout.sharding in ("zero1", "zero2"):
        sizes.append(width * min(_DEEPSPEED_BUCKET, total))
    return sizes


class TrainingStepScript:
    """Builds the events of one stage."""

    def __init__(
        self, shape: TransformerShape, layout: TrainingLayout, stage: PipelineStage, workspace_bytes: int
    ) -> None:
        self.events = StageEvents()
        self._shape, self._layout, self._stage = shape, layout, stage
        self._states = StateBytes(layout)
        self._activations = ActivationModel(shape, layout, layout.micro_batch_tokens)
        self._layers = [self._activations.layer(block) for block in stage.blocks]
        self._groups = [block_group(block, shape, layout) for block in stage.blocks]
        own_copy = layout.pipeline_parallel > 1
        self._root = [embedding_group(shape, layout)] if stage.first else []
        self._head = [head_group(shape, layout, own_copy=own_copy)] if stage.last else []
        self._workspace_bytes = workspace_bytes
        self._gradients: dict[int, list[int]] = {}
        self._gathered: dict[int, int] = {}
        # Reduced gradients stay unsharded, in float32, until the last micro-batch of a pipeline's step.
        self._keeps_gathered = keeps_gathered(self._states)

    def build(self) -> StageEvents:
        """Return the events of a first step, in which optimizer states appear, and a steady one.

        The first step matters to the allocator: states that appear after it split the blocks it left. Where
        they exist before (DeepSpeed makes them at the start) or the cache is emptied, one step says it all.
        """
        self._allocate_persistent()
        if self._layout.framework == "deepspeed" or self._layout.empties_cache:
            self._allocate_optimizer_states()
            self._run_micro_batches()
            self._optimizer_step()
            return self.events
        self._run_micro_batches()
        self._allocate_optimizer_states()
        self._optimizer_step()
        self._zero_gradients()
        self._run_micro_batches()
        self._optimizer_step()
        return self.events

    def _allocate_parts(self, category: str, size: int, group: ParameterGroup) -> list[int]:
        whole = max(sum(group.parts), 1)
        return [self.events.allocate(category, size * part // whole) for part in group.parts]

    @property
    def _all_groups(self) -> list[ParameterGroup]:
        return [*self._root, *self._groups, *self._head]

    def _allocate_persistent(self) -> None:
        events, states, layout = self.events, self._states, self._layout
        for group in self._all_groups:
            self._allocate_parts("parameter", states.parameters(group), group)
        events.allocate("buffer", self._workspace_bytes)
        buffers = communication_buffers(
            states,
            trained=sum(states.trained(group) for group in self._all_groups),
            total=sum(group.size for group in self._all_groups),
            largest=max(group.size for group in self._all_groups),
        )
        for size in buffers:
            events.allocate("communication", size)
        if layout.framework != "pytorch":
            for index, group in enumerate(self._all_groups):
                self._gradients[index] = [events.allocate("gradient", states.gradients(group))]

    def _run_micro_batches(self) -> None:
        layout, stage = self._layout, self._stage
        if layout.pipeline_parallel > 1:
            warm = [self._forward() for _ in range(ceil(stage.in_flight))]
            self._backward(warm.pop(0))
            if layout.micro_batches > stage.in_flight:
                warm.append(self._forward())
            for one in warm:
                self._backward(one)
        else:
            for _ in range(min(layout.micro_batches, 2)):
                self._backward(self._forward())
        self.events.free(*self._gathered.values())
        self._gathered.clear()

    def _gather(self, group: ParameterGroup) -> int:
        """Allocate a group's unsharded weights in the compute type."""
        return self.events.allocate("communication", gathered_bytes(self._states, group))

    def _forward(self) -> _Pass:
        events, layout = self.events, self._layout
        one = _Pass()
        one.root = [self._gather(group) for group in (*self._root, *self._head)]
        one.root.append(events.allocate("input", 16 * layout.micro_batch_tokens))
        stream = self._residual()
        share = self._stage.in_flight / ceil(self._stage.in_flight)
        ahead = None if self._keeps_gathered else self._gather(self._groups[0])
        for number, (layer, group) in enumerate(zip(self._layers, self._groups, strict=True)):
            if self._keeps_gathered and number not in self._gathered:
                self._gathered[number] = self._gather(group)
            gathered = ahead
            following_group = number + 1 if number + 1 < len(self._groups) else None
            ahead = (
                None if following_group is None or self._keeps_gathered else self._gather(self._groups[following_group])
            )
            kept = []
            if layout.recompute == "none":
                kept += self._weight_copies(group)
            else:
                one.copies += self._weight_copies(group)
                kept.append(events.allocate("activation", int(share * layer.input_bytes)))
            kept += [events.allocate("activation", int(share * size)) for size in layer.saved]
            work = events.allocate("temporary", self._forward_temporary(layer))
            following = self._residual()
            events.free(work, stream)
            stream = following
            if gathered is not None:
                events.free(gathered)
            one.layers.append(kept)
        if self._stage.last:
            one.final = [stream]
        else:
            events.free(stream)  # once sent to the next stage
        return one

    def _residual(self) -> int:
        return self.events.allocate("activation", self._layers[0].input_bytes if self._layers else 0)

    def _forward_temporary(self, layer: LayerActivations) -> int:
        # Without a graph a tensor dies when the next is made: a few are alive at once.
        return layer.working_bytes // 2 if self._layout.recompute != "none" else 0

    def _weight_copies(self, group: ParameterGroup) -> list[int]:
        """Autocast's 16-bit copies of float32 matrices.

        The graph keeps them until the layer's backward pass; where the layer is recomputed, autocast's cache
        does, until the forward pass ends, and they are made again.
        """
        layout = self._layout
        if not autocasts_weights(self._states):
            return []
        matrices = group.matrices + group.experts
        if self._head and group is self._head[0] and self._shape.has_head:
            matrices = self._shape.vocab * self._shape.embedding_width // layout.tensor_parallel
        return self._allocate_parts("activation", 2 * matrices, group)

    @property
    def _logits(self) -> int:
        if not self._shape.has_head:
            return 0
        return self._layout.micro_batch_tokens * self._shape.vocab // self._layout.tensor_parallel

    def _forward_loss(self, one: _Pass) -> None:
        events, layout = self.events, self._layout
        one.final += [events.allocate("activation", size) for size in self._activations.final_saved()]
        one.final += self._weight_copies(self._head[0])
        if layout.loss == "chunked":
            chunk = self._logits // _LOSS_CHUNKS
            events.free(events.allocate("logits", (layout.compute_bytes + 8) * chunk))
            return
        one.logits = [events.allocate("logits", layout.compute_bytes * self._logits)]
        if layout.loss == "shifted":
            # The float32 logits take the place of the others and are copied without the last token.
            wide = events.allocate("logits", 4 * self._logits)
            events.free(one.logits.pop())
            one.logits.append(wide)
        if layout.loss in ("eager", "shifted"):
            copied = layout.compute_bytes < 4 or layout.loss == "shifted"
            copy = events.allocate("logits", 4 * self._logits if copied else 0)
            one.logits.append(events.allocate("logits", 4 * self._logits))  # log-softmax, kept
            events.free(copy)

    def _backward(self, one: _Pass) -> None:
        events = self.events
        if self._stage.last:
            # Right before the backward pass: however many passes are in flight, one has logits.
            self._forward_loss(one)
            events.free(*one.copies)
            self._backward_loss(one)
        else:
            events.free(*one.copies)
        flow = self._residual()
        events.free(*one.final)
        for number in reversed(range(len(self._layers))):
            self._backward_layer(number, one.layers[number])
        for index in range(len(self._root)):
            self._gradient(index, self._root[index])
        events.free(flow, *one.root)

    def _backward_loss(self, one: _Pass) -> None:
        events, layout = self.events, self._layout
        gradient = None
        if self._shape.has_head and layout.loss != "chunked":
            if not layout.keeps_outputs and len(one.logits) > 1:
                events.free(one.logits.pop(0))
            gradient = self._logits_gradient(one)
        if self._head:
            self._gradient(len(self._all_groups) - 1, self._head[0])
        if gradient is not None:
            events.free(gradient)
        events.free(*one.logits)

    def _logits_gradient(self, one: _Pass) -> int:
        """Replace what the loss kept by the gradient of the logits and return that."""
        events, layout = self.events, self._layout
        width = layout.compute_bytes
        if layout.loss == "fused":
            return events.allocate("logits", width * self._logits)
        if layout.framework == "megatron":
            # Works in place on the saved softmax: megatron/core/tensor_parallel/cross_entropy.py.
            gradient = one.logits.pop()
        else:
            picked = events.allocate("logits", 4 * self._logits)
            gradient = events.allocate("logits", 4 * self._logits)
            if layout.tensor_parallel > 1:
                # The softmax from its logarithm: torch/distributed/tensor/parallel/loss.py.
                events.free(events.allocate("logits", 4 * self._logits))
            events.free(picked, one.logits.pop())
        if width < 4:
            narrow = events.allocate("logits", width * self._logits)
            events.free(gradient)
            gradient = narrow
        return gradient

    def _backward_layer(self, number: int, kept: list[int]) -> None:
        events, layer, group = self.events, self._layers[number], self._groups[number]
        gathered = None if self._keeps_gathered else self._gather(group)
        recomputed = [events.allocate("activation", size) for size in layer.recomputed]
        if self._layout.recompute != "none":
            recomputed += self._weight_copies(group)
        work = events.allocate("temporary", layer.working_bytes + self._dequantized(group))
        self._gradient(number + len(self._root), group)
        events.free(work, *reversed(recomputed), *reversed(kept))
        if gathered is not None:
            events.free(gathered)

    def _dequantized(self, group: ParameterGroup) -> int:
        """A 4-bit matrix is expanded before each product; the largest is about a third of a layer."""
        return self._layout.compute_bytes * group.matrices // 3 if self._layout.quantized_base else 0

    def _gradient(self, index: int, group: ParameterGroup) -> None:
        events, states, layout = self.events, self._states, self._layout
        trained = states.trained(group)
        size = states.gradients(group)
        whole = None
        if self._keeps_gathered and layout.pipeline_parallel > 1 and layout.micro_batches > 1:
            size = 4 * trained
        elif states.gathers or layout.framework != "pytorch" or index in self._gradients:
            # The gradient as computed, before it is reduced or added: then a copy in the type of the reduction.
            whole = events.allocate("temporary", layout.compute_bytes * trained)
            if states.gathers and layout.framework == "pytorch":
                events.free(events.allocate("communication", 4 * trained if layout.trains_all else 0))
        if index not in self._gradients:
            self._gradients[index] = self._allocate_parts("gradient", size, group)
        if whole is not None:
            events.free(whole)

    def _allocate_optimizer_states(self) -> None:
        for group in self._all_groups:
            self._allocate_parts("optimizer_state", self._states.optimizer(group), group)

    def _optimizer_step(self) -> None:
        total = self._states.step_temporary([(group, 1) for group in self._all_groups])
        whole = max(sum(self._states.trained(group) for group in self._all_groups), 1)
        made = []
        for group in self._all_groups:
            made += self._allocate_parts("temporary", total * self._states.trained(group) // whole, group)
        self.events.free(*made)

    def _zero_gradients(self) -> None:
        if self._layout.framework == "pytorch":  # set_to_none; the others keep their buffers
            for gradients in self._gradients.values():
                self.events.free(*gradients)
            self._gradients.clear()
