"""What the step-time model is made of: links, products, names of software, data files."""

import math

import pytest

from fastbudget.cost.runtime.device_peaks import find_peak, generation_of
from fastbudget.cost.runtime.links import Links
from fastbudget.cost.runtime.rates import achievable_rates, attention_seconds, gemm_seconds, memory_seconds
from fastbudget.cost.runtime.runtime_constants import default_constants, runtime_table
from fastbudget.cost.runtime.software import FAMILIES, read_software
from fastbudget.cost.runtime.topology import Topology, topology_of
from fastbudget.hardware import find_device, known_devices

A100 = achievable_rates(find_device("a100-80gb"))
LINKS = Links(
    topology=Topology(
        devices_per_node=8, link_bytes_per_s=100e9, network_bytes_per_s=10e9, multiprocessors=None, assumed=()
    ),
    local_bytes_per_s=100e9,
    network_bytes_per_s=10e9,
    local_latency_s=0.0,
    network_latency_s=0.0,
    expert_share=1.0,
    data_overlap=0.0,
)


def test_ring_within_a_node():
    # Seven of eight parts over each link.
    assert LINKS.gather_seconds(8e9, 8) == pytest.approx(7 / 8 * 8e9 / 100e9)
    assert LINKS.all_reduce_seconds(8e9, 8) == pytest.approx(2 * 7 / 8 * 8e9 / 100e9)
    assert LINKS.gather_seconds(8e9, 1) == 0.0


def test_ring_between_nodes_takes_the_slower_level():
    # 32 devices, eight a node: each sends three quarters of an eighth to other nodes, 0.075 s; within, 0.07 s.
    assert LINKS.gather_seconds(8e9, 32) == pytest.approx(8e9 / 8 * 3 / 4 / 10e9)
    assert LINKS.gather_seconds(8e9, 16) == pytest.approx(8e9 * 7 / 8 / 100e9)
    # Two devices, eight apart: one a node.
    assert LINKS.gather_seconds(8e9, 2, stride=8) == pytest.approx(8e9 / 2 / 10e9)


def test_rows_cross_the_network_once_for_each_node():
    # 16 nodes of eight, eight copies: 15 others, each hit with 1 - (15/16)^8.
    crossed = 15 * (1 - (15 / 16) ** 8)
    assert LINKS.all_to_all_seconds(1e9, 8, 128) == pytest.approx(crossed * 1e9 / 10e9)
    assert LINKS.all_to_all_seconds(1e9, 8, 8) == pytest.approx(8 * 7 / 8 * 1e9 / 100e9)


def test_neighbors_in_and_beyond_the_node():
    assert LINKS.neighbor_seconds(1e9, 4, 2) == pytest.approx(1e9 / 100e9)
    assert LINKS.neighbor_seconds(1e9, 4, 8) == pytest.approx(1e9 / 10e9)


def test_large_products_reach_the_rate_and_small_ones_do_not():
    large = 2 * 16384**3 / gemm_seconds(16384, 16384, 16384, A100)
    small = 2 * 512**3 / gemm_seconds(512, 512, 512, A100)
    assert large > 0.9 * A100.matrix_flops_per_s > 0.5 * 312e12
    assert small < 0.4 * large


def test_a_wave_more_costs_time():
    # 108 multiprocessors: 12 x 9 tiles of 256 x 128 fill one wave, a row of tiles more begins a second one.
    full = gemm_seconds(256 * 12, 128 * 9, 8192, A100) / (256 * 12)
    more = gemm_seconds(256 * 13, 128 * 9, 8192, A100) / (256 * 13)
    assert more > 1.15 * full


def test_thin_products_take_the_time_of_their_weights():
    for rows in (1, 8):
        seconds = gemm_seconds(rows, 8192, 8192, A100)
        assert seconds == pytest.approx(2 * 8192 * 8192 / A100.memory_bytes_per_s, rel=0.05)


def test_products_never_get_cheaper_with_rows():
    times = [gemm_seconds(rows, 4096, 4096, A100) for rows in (1, 16, 64, 65, 128, 256, 512, 1024, 4096)]
    assert times == sorted(times)
    assert times[3] < 2.5 * times[2]


def test_attention_by_head_size_and_length():
    def rate(seen, dim):
        return 4.0 * 4096 * seen * 16 * dim / attention_seconds(4096, seen, 16, dim, dim, A100)

    assert rate(4096, 128) > rate(4096, 64) > rate(256, 64)
    fused = attention_seconds(4096, 2048, 16, 128, 128, A100)
    assert attention_seconds(4096, 2048, 16, 128, 128, A100, unfused_keys=4096) > 2 * fused


def test_memory_at_the_sustained_bandwidth():
    assert 1.0 < memory_seconds(2.039e12, A100) < 1.5


@pytest.mark.parametrize(
    ("name", "family", "year"),
    [
        ("Megatron-Bridge 26.04 NeMo Container", "megatron", 2026 + 3.5 / 12),
        ("NVIDIA NeMo Framework Release 24.04", "mlperf", 2024 + 3.5 / 12),
        ("MLPerf NeMo (2025-04)", "mlperf", 2025 + 3.5 / 12),
        ("GPT-NeoX (2023)", "neox", 2023.5),
        ("MaxText", "jax", None),
        ("llm.c CUDA 2024", "llm.c", 2024.5),
        ("torchtitan+compile (2024-12)", "torchtitan", 2024 + 11.5 / 12),
        ("HF Trainer + DeepSpeed", "hf", None),
        ("llm-foundry/composer FSDP1", "fsdp", None),
        ("Megatron-DeepSpeed class 2021-2022", "megatron", 2022.0),
        ("something of our own", None, None),
        (None, None, None),
    ],
)
def test_software_is_read_from_free_text(name, family, year):
    found = read_software(name)
    assert found.family == family
    assert found.year == (None if year is None else pytest.approx(year))


def test_missing_peaks_come_from_relatives_and_are_said():
    variant = find_peak(find_device("h100-sxm-96gb"), "bf16")
    original = find_peak(find_device("h100-sxm"), "bf16")
    assert variant.flops_per_s == original.flops_per_s
    assert "H100" in variant.assumed[0]
    # 500 W instead of 700 W.
    assert 0.85 < variant.measured_share / original.measured_share < 0.98
    assert find_peak(find_device("v100"), "bf16").assumed == ("bf16 at its fp16 peak",)
    assert find_peak(find_device("tpu-v4"), "fp32").flops_per_s == pytest.approx(275e12 / 6)


def test_every_generation_and_topology_is_known():
    for device in known_devices():
        assert generation_of(device) is not None, device.key
        topology = topology_of(device)
        assert topology.link_bytes_per_s >= topology.network_bytes_per_s > 0


def test_shipped_constants_are_physical():
    constants, table = default_constants(), runtime_table()
    for name, value in table["constants"].items():
        assert math.isfinite(value), name
        if name != "maturity":
            assert value > 0, name
    for name in ("measured_share", "peak_share", "bandwidth_share", "link_share", "network_share", "data_overlap"):
        assert getattr(constants, name) < 1, name
    assert set(constants.software_shift) <= set(FAMILIES)
    assert constants.log_low < 0 < constants.log_high
    assert table["provenance"]["rows"] == sum(table["provenance"]["rows_by_publisher"].values())
