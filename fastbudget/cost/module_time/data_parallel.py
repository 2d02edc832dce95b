"""Seconds of a traced module's data-parallel communication that computation can't hide."""

from __future__ import annotations

from dataclasses import dataclass

from ...hardware.devices import Device
from ..runtime.calibration import Calibration
from ..runtime.links import Links, links_of
from ..runtime.runtime_constants import default_constants
from ..runtime.topology import Topology

# However well it is hidden, a tail remains: the first gather, the last bucket.
_LEAST_EXPOSED = 0.08
# Between processes on CPUs, where nothing was measured: 10 Gbit/s Ethernet and its latency.
_ETHERNET_BYTES_PER_S = 1.2e9
_ETHERNET_LATENCY_S = 2e-4
# On a CPU, communication takes the cores that compute.
_CPU_OVERLAP = 0.5


@dataclass(frozen=True, kw_only=True)
class DataParallelLoad:
    """What the ranks exchange in a step.

    Attributes:
        num_devices: ranks.
        sharding: ``"none"`` (DDP), ``"zero1"``, ``"zero2"`` or ``"zero3"`` (FSDP2).
        gradient_bytes: of all gradients as they travel.
        weight_bytes: of all weights as they are gathered.
        micro_batches: forward and backward passes of the step.
    """

    num_devices: int
    sharding: str
    gradient_bytes: float
    weight_bytes: float
    micro_batches: int


def exposed_seconds(load: DataParallelLoad, links: Links, *, forward_s: float, backward_s: float) -> float:
    """Return the seconds that a step waits for the other ranks.

    DDP reduces gradients while the last backward pass runs (Li et al. 2020, arXiv:2006.15704); ZeRO-1 and 2 scatter
    them and gather the updated weights (Rajbhandari et al. 2020, arXiv:1910.02054); ZeRO-3 gathers weights for each
    pass of each micro-batch.

    Args:
        load: what is exchanged.
        links: between the ranks.
        forward_s: of all forward passes of the step.
        backward_s: of all backward passes.
    """
    ranks = load.num_devices
    if ranks == 1:
        return 0.0
    gradients = links.gather_seconds(load.gradient_bytes, ranks)
    weights = links.gather_seconds(load.weight_bytes, ranks)
    passes = (forward_s + backward_s) / load.micro_batches
    last_backward = backward_s / load.micro_batches
    if load.sharding == "zero3":
        return load.micro_batches * _exposed(2.0 * weights + gradients, links.data_overlap * passes)
    if load.sharding == "none":
        return _exposed(2.0 * gradients, links.data_overlap * last_backward)
    return _exposed(gradients, links.data_overlap * last_backward) + weights


def links_between(device: Device | None, num_devices: int, calibration: Calibration | None) -> Links:
    """Return the links of a GPU, or between processes on CPUs (``device`` None)."""
    if device is not None:
        return links_of(device, default_constants(), calibration)
    rate, latency = _ETHERNET_BYTES_PER_S, _ETHERNET_LATENCY_S
    if calibration is not None and calibration.all_reduce_bytes_per_s is not None:
        rate = calibration.all_reduce_bytes_per_s
        latency = (calibration.all_reduce_latency_s or 0.0) / 2
    return Links(
        topology=Topology(
            devices_per_node=num_devices, link_bytes_per_s=rate, network_bytes_per_s=rate, multiprocessors=None
        ),
        local_bytes_per_s=rate,
        network_bytes_per_s=rate,
        local_latency_s=latency,
        network_latency_s=latency,
        expert_share=1.0,
        data_overlap=_CPU_OVERLAP,
    )


def _exposed(seconds: float, hidden: float) -> float:
    return max(seconds - hidden, _LEAST_EXPOSED * seconds)
