"""Seconds of communication: what a collective sends over which link, and what it costs to begin.

A ring all-gather or reduce-scatter over n devices sends (n - 1)/n of the whole over each device's link, an
all-reduce twice that; a hierarchical one sends 1/g of it between nodes when g devices of each node take part.
Sources: Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH"; NCCL's performance
notes (github.com/NVIDIA/nccl-tests, PERFORMANCE.md) for the bus bandwidths that the shares are of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...hardware.devices import Device
from .calibration import Calibration
from .runtime_constants import RuntimeConstants
from .topology import Topology, topology_of


@dataclass(frozen=True, kw_only=True)
class Links:
    """What a device achieves over its links.

    Attributes:
        topology: what surrounds the device.
        local_bytes_per_s: of a collective over the fast link.
        network_bytes_per_s: of a collective between nodes, per device.
        local_latency_s: to begin a step of a collective over the fast link.
        network_latency_s: the same between nodes.
        expert_share: bandwidth of an all-to-all against that of other collectives.
        data_overlap: share of computation that data-parallel communication can hide behind.
    """

    topology: Topology
    local_bytes_per_s: float
    network_bytes_per_s: float
    local_latency_s: float
    network_latency_s: float
    expert_share: float
    data_overlap: float

    def gather_seconds(self, whole_bytes: float, ranks: int, stride: int = 1) -> float:
        """Return the seconds of an all-gather, or a reduce-scatter, of `whole_bytes` over `ranks` devices.

        Args:
            whole_bytes: bytes of the whole tensor.
            ranks: devices that take part.
            stride: their distance in the numbering of devices: those of other groups lie between them.
        """
        if ranks == 1:
            return 0.0
        sent = whole_bytes * (ranks - 1) / ranks
        local = self._local_ranks(ranks, stride)
        if local == ranks:
            return sent / self.local_bytes_per_s + self.local_latency_s * math.log2(ranks)
        nodes = ranks / local
        between = whole_bytes / local * (nodes - 1) / nodes
        within = whole_bytes * (local - 1) / local
        latency = self.network_latency_s * math.log2(max(nodes, 2.0)) + self.local_latency_s
        # The two levels are pipelined: the slower one counts.
        return max(between / self.network_bytes_per_s, within / self.local_bytes_per_s) + latency

    def all_reduce_seconds(self, whole_bytes: float, ranks: int, stride: int = 1) -> float:
        """Return the seconds of an all-reduce: a reduce-scatter and an all-gather."""
        return 2.0 * self.gather_seconds(whole_bytes, ranks, stride)

    def all_to_all_seconds(self, row_bytes: float, copies: int, ranks: int, stride: int = 1) -> float:
        """Return the seconds in which each device sends every row of its own to `copies` of `ranks` devices.

        A row crosses the network once for each other node that it goes to, and is copied there (DeepEP;
        DeepSeek-V3, arXiv:2412.19437, section 3.2.2).

        Args:
            row_bytes: bytes of all rows of a device, once.
            copies: devices that a row goes to, drawn evenly.
            ranks: devices that take part.
            stride: their distance in the numbering of devices.
        """
        if ranks == 1:
            return 0.0
        local = self._local_ranks(ranks, stride)
        nodes = ranks / local
        within = row_bytes * copies * (local - 1) / local / self.local_bytes_per_s
        other_nodes = (nodes - 1.0) * (1.0 - (1.0 - 1.0 / nodes) ** copies)
        between = row_bytes * other_nodes / self.network_bytes_per_s
        latency = self.local_latency_s if nodes == 1 else self.network_latency_s
        return max(within, between) / self.expert_share + latency

    def neighbor_seconds(self, sent_bytes: float, ranks: int, stride: int) -> float:
        """Return the seconds to send to the next of `ranks` devices: a pipeline's stage, a ring's step."""
        if self._local_ranks(ranks, stride) == ranks:
            return sent_bytes / self.local_bytes_per_s + self.local_latency_s
        return sent_bytes / self.network_bytes_per_s + self.network_latency_s

    def _local_ranks(self, ranks: int, stride: int) -> int:
        """Devices of a group that share a node."""
        return max(min(ranks, self.topology.devices_per_node // stride), 1)


def links_of(device: Device, constants: RuntimeConstants, calibration: Calibration | None = None) -> Links:
    """Return what a device achieves over its links; a measured all-reduce takes the fast link's place."""
    topology = topology_of(device)
    local, latency = topology.link_bytes_per_s * constants.link_share, constants.link_latency_s
    if calibration is not None and calibration.all_reduce_bytes_per_s is not None:
        local = calibration.all_reduce_bytes_per_s
        if calibration.all_reduce_latency_s is not None:
            latency = calibration.all_reduce_latency_s / 2
    return Links(
        topology=topology,
        local_bytes_per_s=local,
        network_bytes_per_s=min(topology.network_bytes_per_s * constants.network_share, local),
        local_latency_s=latency,
        network_latency_s=constants.network_latency_s,
        expert_share=constants.expert_share,
        data_overlap=constants.data_overlap,
    )
