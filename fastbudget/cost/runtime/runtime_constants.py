"""The fitted constants of the step-time model: few, global, with shifts by device generation and software."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RuntimeConstants:
    """What datasheets don't say. Shares are of a datasheet's figure; all are positive.

    Attributes:
        measured_share: rate of large matrix products in training, as a share of the fastest published one.
        peak_share: the same as a share of the peak, where nobody published a measurement.
        narrow_share: further share of 8-bit products: scales, casts, the products that stay in 16 bits.
        half_rows: rows at which a matrix product runs at half its rate, at the A100's ratio of arithmetic to bandwidth.
        half_columns: the same for columns.
        half_depth: the same for the summed dimension.
        wave_loss: share of the idle last wave of tiles that is really lost.
        attention_share: rate of fused attention as a share of that of matrix products, large heads, long sequences.
        ported_attention: further share of attention written for an older generation's matrix units.
        attention_backward: FLOPs-weighted slowness of its backward pass against its forward pass.
        half_head: head size at which attention runs at half its rate.
        half_seen: tokens seen at which it does.
        score_passes: reads and writes of the scores when attention isn't fused.
        bandwidth_share: of memory-bound operations.
        fused_passes: reads and writes of a layer's activations outside products, with fused kernels.
        eager_passes: the same, without.
        kernels_per_layer: launches of a layer's forward pass, without fused kernels.
        expert_kernels: launches of a layer with routed experts against one without.
        kernels_per_collective: launches that a collective costs the host.
        launch_s: seconds from one launch to the next where the device waits for the host.
        cast_passes: reads and writes of a narrow product's inputs for casting and scaling, where kernels fuse it.
        dequantize_passes: time of turning 4-bit weights into 16-bit ones against reading and writing them once.
        head_passes: reads and writes of the logits, in 16-bit passes.
        optimizer_passes: reads and writes of the optimizer step against the states' bytes.
        step_s: what a step takes whatever is trained: the loop, logging, data loading, synchronization.
        link_share: bandwidth of collectives over the fast link.
        link_latency_s: of a collective there.
        network_share: bandwidth of collectives between nodes.
        network_latency_s: of a collective between nodes, times the logarithm of their number.
        data_overlap: share of the backward pass that data-parallel communication can hide behind.
        tensor_overlap: share of tensor-parallel communication that is hidden by software tuned for its devices.
        context_overlap: share of attention that the exchange of keys and values can hide behind.
        expert_share: bandwidth of the all-to-all against that of other collectives.
        expert_overlap: share of the all-to-all that is hidden.
        expert_imbalance: time of the experts with real routing against balanced routing.
        straggler: log slowness per doubling of the nodes.
        whole_run: device time of published whole runs beyond their steps, as a share of those: restarts, evaluation,
            checkpoints, idling.
        maturity: log speed per year between a generation's release and the software's, up to three.
        generation_shift: log speed of matrix products by device generation.
        software_shift: log speed by software family.
        log_low: lower end of the 80% interval, as log of measured over predicted time.
        log_high: its upper end.
        waiting_width: how much wider the interval is, in log, where nothing is computed: communication, launches,
            bubbles.
        expert_width: factor on the interval for mixtures of experts.
    """

    measured_share: float
    peak_share: float
    narrow_share: float
    half_rows: float
    half_columns: float
    half_depth: float
    wave_loss: float
    attention_share: float
    ported_attention: float
    attention_backward: float
    half_head: float
    half_seen: float
    score_passes: float
    bandwidth_share: float
    fused_passes: float
    eager_passes: float
    kernels_per_layer: float
    expert_kernels: float
    kernels_per_collective: float
    launch_s: float
    cast_passes: float
    dequantize_passes: float
    head_passes: float
    optimizer_passes: float
    step_s: float
    link_share: float
    link_latency_s: float
    network_share: float
    network_latency_s: float
    data_overlap: float
    tensor_overlap: float
    context_overlap: float
    expert_share: float
    expert_overlap: float
    expert_imbalance: float
    straggler: float
    whole_run: float
    maturity: float
    log_low: float = -0.4
    log_high: float = 0.4
    waiting_width: float = 2.5
    expert_width: float = 1.5
    generation_shift: dict[str, float] = field(default_factory=dict, hash=False)
    software_shift: dict[str, float] = field(default_factory=dict, hash=False)


@cache
def runtime_table() -> dict[str, Any]:
    """Return the data file: constants, intervals, what they were fitted on."""
    return tomllib.loads(files(__package__).joinpath("runtime_constants.toml").read_text())


@cache
def default_constants() -> RuntimeConstants:
    """Return the constants that ship with the package."""
    table = runtime_table()
    return RuntimeConstants(
        **table["constants"],
        **table["interval"],
        generation_shift=table["generation_shift"],
        software_shift=table["software_shift"],
    )
