"""The allocator's options as PyTorch writes them.

Expected readings were checked with torch 2.13's own parser, c10::CachingAllocator.
"""

import pytest

from fastbudget.core.errors import InvalidInputError
from fastbudget.cost import AllocatorConfig


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", AllocatorConfig()),
        ("expandable_segments:True", AllocatorConfig(expandable_segments=True)),
        ("max_split_size_mb:128", AllocatorConfig(max_split_size_mb=128)),
        (" max_split_size_mb : 1 28 , ", AllocatorConfig(max_split_size_mb=128)),  # PyTorch drops white space
        ("max_split_size_mb:100,max_split_size_mb:200", AllocatorConfig(max_split_size_mb=200)),
        ("large_segment_size_mb:64", AllocatorConfig(large_segment_size_mb=64)),
        ("max_non_split_rounding_mb:30", AllocatorConfig(max_non_split_rounding_mb=30)),
        ("backend:native,pinned_use_background_threads:True", AllocatorConfig()),
        (
            "garbage_collection_threshold:0.8",
            AllocatorConfig(not_simulated=("garbage_collection_threshold",)),
        ),
    ],
)
def test_from_env(settings, expected):
    assert AllocatorConfig.from_env(settings) == expected


@pytest.mark.parametrize(
    ("settings", "divisions"),
    [
        ("4", 4),
        ("[256:1,512:2,1024:4,>:8]", (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8)),
        ("[64:8,1024:4,>:1]", (8, 8, 8, 8, 8, 8, 8, 0, 0, 0, 4, 1, 1, 1, 1, 1)),
        ("[512:2,256:4]", (2, 2, 2, 2, 2, 2, 2, 2, 4, 2, 0, 0, 0, 0, 0, 0)),
        ("[>:4]", (0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4)),
        ("[131072:2]", (2,) * 16),
        ("[]", (0,) * 16),
    ],
)
def test_roundup_power2_divisions(settings, divisions):
    config = AllocatorConfig.from_env(f"roundup_power2_divisions:{settings},expandable_segments:True")
    assert config.roundup_power2_divisions == divisions
    assert config.expandable_segments


def test_environment(monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    assert AllocatorConfig.from_env() == AllocatorConfig()
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:50")
    assert AllocatorConfig.from_env().max_split_size_mb == 50
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:60")
    assert AllocatorConfig.from_env().max_split_size_mb == 60


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("expandable_segment:True", "Unknown allocator option .* Did you mean 'expandable_segments'"),
        ("expandable_segments:true", "must be True or False, got 'true'. Did you mean 'True'"),
        ("max_split_size_mb:10", "max_split_size_mb must be an integer from 20"),
        ("max_split_size_mb:32,large_segment_size_mb:64", "max_split_size_mb must be an integer from 64"),
        ("max_split_size_mb:-1", "whole number"),
        ("max_split_size_mb:99999999999999", "max_split_size_mb must be an integer"),
        ("large_segment_size_mb:10", "large_segment_size_mb must be an integer from 11"),
        ("max_split_size_mb", "written name:value"),
        ("max_split_size_mb:,", "written name:value"),
        ("max_split_size_mb:32 expandable_segments:True", "whole number"),
        ("max_split_size_mb:32,,expandable_segments:True", "written name:value"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:[256:3]", "power of two"),
        ("roundup_power2_divisions:[100:2]", "sizes must be powers of two"),
        ("roundup_power2_divisions:[0:2]", "sizes must be powers of two"),
        ("roundup_power2_divisions:[256]", "write .MiB:divisions"),
        ("roundup_power2_divisions:[256:2", "closing"),
        ("backend:cudaMallocAsync", "Only the allocator backend 'native'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InvalidInputError, match=message):
        AllocatorConfig.from_env(settings)


@pytest.mark.parametrize(
    "options",
    [
        {"expandable_segments": 1},
        {"max_split_size_mb": 64.0},
        {"max_split_size_mb": True},
        {"max_non_split_rounding_mb": 19},
        {"roundup_power2_divisions": -2},
        {"roundup_power2_divisions": (1, 2)},
        {"roundup_power2_divisions": "4"},
    ],
)
def test_bad_options(options):
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        AllocatorConfig(**options)
