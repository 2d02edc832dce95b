"""A lower bound of a training step's peak memory in microseconds, for searching many layouts.

The full estimate writes down every allocation and replays them through the allocator's simulation. The bound adds
up what is certainly alive at the moments where a step's peak occurs: the loss, the backward passes of a stage's last
and first layer, and the optimizer step. The allocator reserves no less than what is alive, so a layout whose bound
exceeds the device does not fit by the full estimate either. The reverse has to be checked with that.
"""

from __future__ import annotations

from collections import Counter
from math import ceil

from ...hardware.devices import Device
from ..device_overhead import cublas_workspace_bytes, overhead_bytes
from .layer_activations import ActivationModel, LayerActivations
from .model_states import ParameterGroup, StateBytes, block_group, embedding_group, head_group
from .pipeline_stages import PipelineStage, pipeline_stages
from .training_layout import TrainingLayout
from .training_step_script import autocasts_weights, communication_buffers, gathered_bytes, keeps_gathered
from .transformer_shape import TransformerShape

# What rounding every tensor's size down can lose over a stage.
_ROUNDING_BYTES = 2**20


def memory_bound(shape: TransformerShape, layout: TrainingLayout, device: Device) -> int:
    """Return at most ``estimate_transformer_memory(shape, layout, device).device_bytes``, for a training step."""
    stages = pipeline_stages(shape, layout)
    # The first stage holds most passes in flight, the last the logits.
    ends = stages if len(stages) == 1 else (stages[0], stages[-1])
    alive = max(_StagePeak(shape, layout, stage).bytes_alive() for stage in ends)
    return alive - _ROUNDING_BYTES + cublas_workspace_bytes(device) + overhead_bytes(layout)


class _StagePeak:
    """Moments of a step on one rank of a stage, in bytes. Layers that are alike are computed once and counted."""

    def __init__(self, shape: TransformerShape, layout: TrainingLayout, stage: PipelineStage) -> None:
        self._shape, self._layout, self._stage = shape, layout, stage
        self._states = StateBytes(layout)
        self._model = ActivationModel(shape, layout, layout.micro_batch_tokens)
        self._keeps_gathered = keeps_gathered(self._states)
        self._recomputes = layout.recompute != "none"
        self._share = stage.in_flight / ceil(stage.in_flight)
        count = Counter(map(id, stage.blocks))
        blocks = {id(block): block for block in stage.blocks}
        layers = {key: (block_group(block, shape, layout), self._model.layer(block)) for key, block in blocks.items()}
        self._layers = [(*layer, count[key]) for key, layer in layers.items()]
        self._first, self._last = layers[id(stage.blocks[0])], layers[id(stage.blocks[-1])]
        ends = [embedding_group(shape, layout)] if stage.first else []
        self._head = head_group(shape, layout, own_copy=layout.pipeline_parallel > 1) if stage.last else None
        self._ends = [*ends, self._head] if self._head else ends
        self._groups = [*((group, 1) for group in self._ends), *((group, times) for group, _, times in self._layers)]

    def bytes_alive(self) -> int:
        """Return the most bytes alive at the moments that are looked at."""
        layout, states = self._layout, self._states
        always = sum(times * (states.parameters(group) + states.optimizer(group)) for group, times in self._groups)
        always += self._buffers()
        gradients = sum(times * self._gradient(group) for group, times in self._groups)
        # Other frameworks hold gradients from the start; PyTorch frees them after the step.
        held = gradients if layout.framework != "pytorch" else 0
        moments = [gradients + states.step_temporary(self._groups)]

        gathered = sum(times * gathered_bytes(states, group) for group, _, times in self._layers)
        always_gathered = gathered if self._keeps_gathered else 0
        saved = sum(times * self._saved(group, layer) for group, layer, times in self._layers)
        beside = sum(gathered_bytes(states, group) for group in self._ends) + 16 * layout.micro_batch_tokens
        copies = sum(times * self._copies(group) for group, _, times in self._layers) if self._recomputes else 0
        stream = self._first[1].input_bytes if self._stage.last else 0
        one_pass = saved + beside + copies + stream
        head_gradient = self._gradient(self._head) if self._head else 0
        for passes, adds in self._backward_passes():
            others = always_gathered + (passes - 1) * one_pass
            own = saved + beside
            if self._head:
                loss = self._loss(copies) + own + stream
                moments.append(others + loss + (gradients if adds else held))
            own += self._first[1].input_bytes  # the gradient of the residual stream
            before = gradients if adds else held or head_gradient
            moments.append(others + own + before + self._backward(*self._last, accumulates=adds))
            if not adds:
                # Down to the first layer the others have exchanged their activations for gradients.
                own += self._saved(*self._first) - saved
                embedding = sum(self._gradient(group) for group in self._ends) - head_gradient
                before = held or gradients - embedding - self._gradient(self._first[0])
                moments.append(others + own + before + self._backward(*self._first, accumulates=False))
        return always + max(moments)

    def _backward_passes(self) -> list[tuple[int, bool]]:
        """Return (passes alive, gradients are added to others) of the backward passes with most alive."""
        layout = self._layout
        if layout.pipeline_parallel == 1:
            return [(1, layout.micro_batches > 1)]
        passes = ceil(self._stage.in_flight)
        if layout.micro_batches > self._stage.in_flight:
            return [(passes, True)]
        return [(passes, False), (passes - 1, True)] if passes > 1 else [(passes, False)]

    def _buffers(self) -> int:
        states = self._states
        sizes = communication_buffers(
            states,
            trained=sum(times * states.trained(group) for group, times in self._groups),
            total=sum(times * group.size for group, times in self._groups),
            largest=max(group.size for group, _ in self._groups),
        )
        return sum(sizes)

    def _saved(self, group: ParameterGroup, layer: LayerActivations) -> int:
        if self._recomputes:
            return int(self._share * (layer.input_bytes + sum(layer.saved)))
        return int(self._share * sum(layer.saved)) + self._copies(group)

    def _copies(self, group: ParameterGroup) -> int:
        return 2 * (group.matrices + group.experts) if autocasts_weights(self._states) else 0

    def _gradient(self, group: ParameterGroup) -> int:
        if self._accumulates_unsharded and self._layout.framework == "pytorch":
            return 4 * self._states.trained(group)
        return self._states.gradients(group)

    @property
    def _accumulates_unsharded(self) -> bool:
        layout = self._layout
        return self._keeps_gathered and layout.pipeline_parallel > 1 and layout.micro_batches > 1

    def _loss(self, copies: int) -> int:
        """The loss: in its forward pass autocast still caches copies, in its backward pass there are more logits."""
        layout = self._layout
        total = sum(self._model.final_saved())
        if not self._shape.has_head:
            return total + copies
        width = layout.compute_bytes
        elements = layout.micro_batch_tokens * self._shape.vocab // layout.tensor_parallel
        if autocasts_weights(self._states):
            total += 2 * (self._shape.vocab * self._shape.embedding_width // layout.tensor_parallel)
        if layout.loss == "chunked":
            return total + copies
        if layout.loss == "fused":
            return total + max(copies + width * elements, 2 * width * elements)
        outputs = 4 if layout.loss == "shifted" else width
        copied = 4 if width < 4 or layout.loss == "shifted" else 0
        kept = outputs if layout.keeps_outputs else 0
        backward = kept + 4 if layout.framework == "megatron" else kept + 12 + 4 * (layout.tensor_parallel > 1)
        return total + max(copies + (outputs + copied + 4) * elements, backward * elements)

    def _backward(self, group: ParameterGroup, layer: LayerActivations, *, accumulates: bool) -> int:
        """A layer's backward pass, beside what was kept for it: weights, recomputed activations, temporaries."""
        states, layout = self._states, self._layout
        total = layer.working_bytes + (0 if self._keeps_gathered else gathered_bytes(states, group))
        if self._recomputes:
            total += sum(layer.recomputed) + self._copies(group)
        if layout.quantized_base:
            total += layout.compute_bytes * group.matrices // 3
        trained = states.trained(group)
        fresh = 0 if accumulates or layout.framework != "pytorch" else self._gradient(group)
        if self._accumulates_unsharded:
            return total + fresh
        if states.gathers or layout.framework != "pytorch" or accumulates:
            reduced = 4 * trained if states.gathers and layout.framework == "pytorch" and layout.trains_all else 0
            return total + layout.compute_bytes * trained + max(reduced, fresh)
        return total + fresh
