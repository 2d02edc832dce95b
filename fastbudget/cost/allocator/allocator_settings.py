"""The options of PyTorch's CUDA caching allocator, by its own names, and the setting they are written in."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from ...core.errors import InvalidInputError, did_you_mean, one_of

# Torch 2.13 reads the older name first, though its documentation calls it the fallback.
ENVIRONMENT_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

_DEFAULT_LARGE_SEGMENT_MB = 20
_MAX_MB = 2**36  # the simulation's limit of 2^56 bytes
_MAX_DIVISIONS = 2**20
_NUM_INTERVALS = 16  # sizes from 1 MiB, doubling, to 64 GiB

# They say how, not how much, device memory is held; the native backend is the one simulated.
_WITHOUT_EFFECT_ON_SIZES = frozenset({
    "backend", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom", "pinned_use_cuda_host_register", "pinned_use_hip_host_register",
    "pinned_num_register_threads", "pinned_use_background_threads", "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all", "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb",
})  # fmt: skip
_NOT_SIMULATED = frozenset({"garbage_collection_threshold", "per_process_memory_fraction"})
_SIZES_MB = ("max_split_size_mb", "large_segment_size_mb", "max_non_split_rounding_mb")
_SIMULATED = ("expandable_segments", *_SIZES_MB, "roundup_power2_divisions")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorConfig:
    """Options of PyTorch's CUDA caching allocator; the defaults are PyTorch's.

    Args:
        expandable_segments: One growing segment per pool instead of many fixed ones.
        max_split_size_mb: Blocks of this many MiB or more are never split; at least
            ``large_segment_size_mb``. None: blocks of any size are split.
        roundup_power2_divisions: Rounds sizes up to one of so many equal steps between powers of two; a
            power of two, or 0 or 1 for none. Sixteen numbers set it by size: below 2 MiB, [2, 4) MiB, ...,
            from 32 GiB.
        large_segment_size_mb: The segment that requests between 1 and 10 MiB share; above 10. Older versions
            of torch lack this option and use 20.
        max_non_split_rounding_mb: A block that may not be split serves requests down to this many MiB below
            its size. None: ``large_segment_size_mb``.
        not_simulated: Options that were set but that the simulation leaves out.

    Raises:
        InvalidInputError: an option is out of range.
    """

    expandable_segments: bool = False
    max_split_size_mb: int | None = None
    roundup_power2_divisions: int | tuple[int, ...] = 0
    large_segment_size_mb: int = _DEFAULT_LARGE_SEGMENT_MB
    max_non_split_rounding_mb: int | None = None
    not_simulated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.expandable_segments, bool):
            raise InvalidInputError(f"expandable_segments must be True or False, got {self.expandable_segments!r}.")
        _check_integer("large_segment_size_mb", self.large_segment_size_mb, 11, _MAX_MB)
        for name in ("max_split_size_mb", "max_non_split_rounding_mb"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), self.large_segment_size_mb, _MAX_MB)
        divisions = self.roundup_power2_divisions
        if isinstance(divisions, tuple) and len(divisions) != _NUM_INTERVALS:
            raise InvalidInputError(
                f"roundup_power2_divisions must be one number, or {_NUM_INTERVALS} for sizes doubling from "
                f"1 MiB to 32 GiB, got {len(divisions)}."
            )
        for number in divisions if isinstance(divisions, tuple) else (divisions,):
            _check_integer("roundup_power2_divisions", number, 0, _MAX_DIVISIONS)
            if number & (number - 1):
                raise InvalidInputError(f"roundup_power2_divisions must be a power of two or 0, got {number}.")

    @classmethod
    def from_env(cls, settings: str | None = None) -> AllocatorConfig:
        """Read options as PyTorch writes them, such as ``"expandable_segments:True,max_split_size_mb:128"``.

        Args:
            settings: The text; None takes ``PYTORCH_CUDA_ALLOC_CONF``, else ``PYTORCH_ALLOC_CONF``.

        Raises:
            InvalidInputError: an unknown option, a malformed or out-of-range value, or another backend.
        """
        if settings is None:
            settings = next((os.environ[name] for name in ENVIRONMENT_VARIABLES if name in os.environ), "")
        options: dict[str, Any] = {}
        not_simulated: list[str] = []
        for name, value in _split_settings(settings):
            if name in _SIZES_MB:
                options[name] = _integer(name, value)
            elif name == "expandable_segments":
                options[name] = _boolean(name, value)
            elif name == "roundup_power2_divisions":
                options[name] = _divisions(value)
            elif name == "backend" and value != "native":
                raise InvalidInputError(f"Only the allocator backend 'native' can be simulated, got {value!r}.")
            elif name in _NOT_SIMULATED:
                not_simulated.append(name)
            elif name not in _WITHOUT_EFFECT_ON_SIZES:
                known = sorted({*_SIMULATED, *_NOT_SIMULATED, *_WITHOUT_EFFECT_ON_SIZES})
                raise InvalidInputError(
                    f"Unknown allocator option {name!r}.{did_you_mean(name, known)} Known: {one_of(known)}."
                )
        return cls(**options, not_simulated=tuple(not_simulated))


def _check_integer(name: str, value: object, smallest: int, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise InvalidInputError(f"{name} must be an integer from {smallest} to {largest}, got {value!r}.")


def _split_settings(settings: str) -> list[tuple[str, str]]:
    """Return names and values. PyTorch drops white space anywhere and allows a comma at the end."""
    text = re.sub(r"\s", "", settings).removesuffix(",")
    if not text:
        return []
    pairs = []
    for item in re.split(r",(?![^\[]*\])", text):  # commas inside [...] separate a value's own parts
        name, colon, value = item.partition(":")
        if not colon or not name or not value:
            raise InvalidInputError(
                f"Allocator options are written name:value,name:value; got {item!r} in {settings!r}."
            )
        pairs.append((name, value))
    return pairs


def _integer(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise InvalidInputError(f"{name} must be a whole number, got {value!r}.")
    return int(value)


def _boolean(name: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise InvalidInputError(f"{name} must be True or False, got {value!r}.{did_you_mean(value, ('True', 'False'))}")
    return value == "True"


def _divisions(value: str) -> int | tuple[int, ...]:
    """Read ``4``, or ``[256:1,512:2,>:8]``: for sizes from so many MiB; ``>`` for all above the last.

    PyTorch's rules: sizes below the first one named take its number, those between two take 0.
    """
    if not value.startswith("["):
        return _integer("roundup_power2_divisions", value)
    if not value.endswith("]"):
        raise InvalidInputError(f"roundup_power2_divisions: the closing ']' is missing in {value!r}.")
    numbers = [0] * _NUM_INTERVALS
    last = 0
    items = value[1:-1].split(",") if value != "[]" else []
    for position, item in enumerate(items):
        size_mb, colon, text = item.partition(":")
        if not colon:
            raise InvalidInputError(f"roundup_power2_divisions: write [MiB:divisions,...], got {item!r}.")
        number = _integer("roundup_power2_divisions", text)
        if size_mb == ">":
            numbers[last + 1 :] = [number] * (_NUM_INTERVALS - last - 1)
            continue
        size = _integer("roundup_power2_divisions", size_mb)
        if size == 0 or size & (size - 1):
            raise InvalidInputError(f"roundup_power2_divisions: sizes must be powers of two (MiB), got {size}.")
        last = min(size.bit_length() - 1, _NUM_INTERVALS - 1)
        if position == 0:
            numbers[:last] = [number] * last
        numbers[last] = number
    return tuple(numbers)
