"""The table of accelerators: names people type, sources, plausible figures."""

import pytest

from fastbudget import InvalidInputError
from fastbudget.hardware import find_device, known_devices

NAMES = {
    "h100": "h100-sxm", "H100-SXM": "h100-sxm", "NVIDIA H100 80GB HBM3": "h100-sxm", "h100-pcie": "h100-pcie",
    "a100": "a100-sxm-80gb", "a100-80gb": "a100-sxm-80gb", "A100 40GB": "a100-sxm-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb", "rtx4090": "rtx-4090", "NVIDIA GeForce RTX 4090": "rtx-4090",
    "4090": "rtx-4090", "v100-32gb": "v100-sxm-32gb", "Tesla V100-SXM2-32GB": "v100-sxm-32gb",
    "v100": "v100-sxm-32gb", "l40s": "l40s", "NVIDIA L40S": "l40s", "h200": "h200-sxm", "b200": "b200-sxm",
    "Tesla T4": "t4", "mi300x": "mi300x", "AMD Instinct MI300X": "mi300x", "tpu_v5e": "tpu-v5e",
}  # fmt: skip


@pytest.mark.parametrize(("typed", "key"), NAMES.items())
def test_names_people_type(typed, key):
    assert find_device(typed).key == key


def test_unknown_names_are_answered_with_the_closest():
    with pytest.raises(InvalidInputError, match=r"Unknown hardware 'h10'.*Did you mean 'h100'"):
        find_device("h10")
    with pytest.raises(InvalidInputError, match="Known: 'v100-sxm-32gb'"):
        find_device("abacus")


def test_the_table_holds_every_accelerator_with_sources():
    devices = known_devices()
    assert len(devices) == 37
    for device in devices:
        assert find_device(device.key) is device
        assert find_device(device.name) is device
        assert device.memory_bytes > 10e9
        for figure, source in device.sources.items():
            assert getattr(device, figure) is not None
            assert source.source
            assert not (source.verified and "from memory" in source.source), (device.key, figure)


def test_peaks_are_dense():
    # Datasheets print twice these, with sparsity: the mistake behind "MFU 25%".
    assert find_device("h100").bf16_flops_per_s == 989e12
    assert find_device("a100").bf16_flops_per_s == 312e12
    assert find_device("rtx4090").bf16_flops_per_s == 165.2e12
    for device in known_devices():
        measured, peak = device.measured_bf16_flops_per_s, device.bf16_flops_per_s
        assert measured is None or peak is None or measured < peak


def test_a_device_passes_through():
    device = find_device("l4")
    assert find_device(device) is device
