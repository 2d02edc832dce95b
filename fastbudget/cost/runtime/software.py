"""Which family of training software a free-form name belongs to, and from when it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

# The first pattern that matches decides. Families whose kernels and overlap are alike stay together.
_PATTERNS = (
    ("mlperf", r"mlperf|release 2[34]\.\d\d|hugectr|ngc pytorch"),
    ("megatron", r"megatron|nemo|\bmcore|transformer.?engine"),
    ("neox", r"neox"),
    ("jax", r"maxtext|\bjax|\bflax|t5x|\bxla|easylm|levanter|tensorflow|mesh"),
    ("llm.c", r"llm\.c"),
    ("torchtitan", r"torchtitan|torchtune|nanogpt|torch\.compile|compile"),
    ("hf", r"hugging|\bhf\b|transformers|trainer|peft|trl|axolotl|unsloth|swift|llama.?factory|accelerate|llava"),
    ("deepspeed", r"deepspeed|zero"),
    ("fsdp", r"fsdp|composer|foundry|fairseq|metaseq|lightning|lit-?gpt|fabric|nvidia dle|pytorch|torch|open_clip"),
)
FAMILIES = tuple(family for family, _ in _PATTERNS)
# Their layers are compiled, or written as few kernels.
FUSING_FAMILIES = ("mlperf", "megatron", "jax", "llm.c", "torchtitan")
# They call attention written for each generation (cuDNN, vendors' kernels).
NATIVE_ATTENTION_FAMILIES = ("mlperf", "megatron", "llm.c", "jax")
# Tuned for their devices: few kernels, collectives that overlap with products (Transformer Engine, XLA).
TUNED_FAMILIES = ("mlperf", "megatron", "jax", "llm.c")
# Whole steps are one launch, or launches come from C: Python's share of their cost is gone.
GRAPH_FAMILIES = ("mlperf", "jax", "llm.c")
_MLPERF_ROUNDS = {
    "0.7": 2020.5,
    "1.0": 2021.5,
    "1.1": 2021.9,
    "2.0": 2022.5,
    "2.1": 2022.9,
    "3.0": 2023.4,
    "3.1": 2023.8,
    "4.0": 2024.4,
    "4.1": 2024.8,
    "5.0": 2025.4,
    "5.1": 2025.8,
}


@dataclass(frozen=True, kw_only=True)
class Software:
    """What trains.

    Attributes:
        family: one of the families whose efficiency was fitted; None: not known.
        year: when it is from, with a fraction; None: not known.
    """

    family: str | None
    year: float | None


@lru_cache(maxsize=1024)
def read_software(name: str | None) -> Software:
    """Return the family and the year in a name such as ``"NeMo 25.04"``, ``"FSDP 2023-11"``, ``"MLPerf v4.1"``."""
    text = (name or "").lower()
    family = next((family for family, pattern in _PATTERNS if re.search(pattern, text)), None)
    return Software(family=family, year=_year(text))


def _year(text: str) -> float | None:
    years = re.findall(r"\b(20[12]\d)(?:-(0[1-9]|1[0-2])\b)?", text)
    if years:
        found = [int(year) + (int(month) - 0.5) / 12 if month else int(year) + 0.5 for year, month in years]
        return sum(found) / len(found)
    version = re.search(r"\bv(\d\.\d)\b", text)
    if version and version[1] in _MLPERF_ROUNDS:
        return _MLPERF_ROUNDS[version[1]]
    release = re.search(r"\b(2\d)\.(0[1-9]|1[0-2])\b", text)
    return 2000 + int(release[1]) + (int(release[2]) - 0.5) / 12 if release else None
