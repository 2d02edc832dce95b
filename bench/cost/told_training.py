"""What a published row tells of the training: precision, length, devices, batch, sharding, recomputation, adapters."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from model_shapes import BILLIONS, FoundModel, model_name
from row_cells import NotModeled, Row, count, positive, precision_of

from fastbudget.cost.transformer.transformer_shape import TransformerShape
from fastbudget.hardware import Device

_KILO = {"k": 1024.0}
_TRAINER_STYLE = re.compile(r"hf trainer|axolotl|swift|llama-?factory|peft|unsloth|trl|\blora\b")
# A full run whose number of devices isn't told is taken to have lasted three weeks, as LLaMA's; the largest up to
# three months.
_RUN_HOURS, _LONGEST_HOURS = 21 * 24, 90 * 24


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A row being read.

    Attributes:
        row: its cells.
        text: what it says of software and method, in lower case.
        date: of the software: year, or year and month.
        assumed: what the row doesn't say; grows while it is read.
    """

    row: Row
    text: str
    date: str | None
    assumed: list[str] = field(default_factory=list)

    def assume(self, words: str) -> None:
        """Write down an assumption."""
        self.assumed.append(words)


def told_precision(reading: Reading, device: Device) -> str:
    """Return the training precision."""
    row, text = reading.row, reading.text
    if "mlperf" in text and not row.get("precision", ""):
        # Closed-division submissions run what the device is fastest in and quality allows.
        plain = re.search(r"tinygrad|deepspeed", text) or not device.fp8_flops_per_s or device.key.startswith("tpu")
        precision = precision_of(row, device)[0] if plain else "fp8-mixed"
        reading.assume(f"precision {precision}")
        return precision
    precision, assumption = precision_of(row, device)
    if precision == "bf16-mixed" and re.search(r"torchtune|axolotl|unsloth", text):
        precision = "bf16"  # these hold the weights themselves in 16 bits
    if assumption:
        reading.assume(assumption)
    return precision


def told_length(reading: Reading, model: FoundModel) -> int:
    """Return the tokens of a sequence."""
    row, text, date = reading.row, reading.text, reading.date
    if model.seq_len:
        return model.seq_len
    length = count(row, "seq_len", _KILO)
    if length is None and (named := re.search(r"\bseq(?:[ _]?len(?:gth)?)?[ =:]*(\d+)(k?)\b", text)):
        length = int(named[1]) * (1024 if named[2] else 1)
    if length == 512 and re.search(r"mlperf-bert|nvidia dle", text):
        # These leave out padding or sort by length (github.com/NVIDIA/lddl), and about half of 512 tokens of
        # Wikipedia's sequences is padding: Krell et al. 2021 (arXiv:2107.02027).
        reading.assume("256 of 512 tokens are no padding")
        return 256
    if length is not None:
        return length
    name = model_name(row.get("model", ""))
    for start, usual in (("gpt2", 1024), ("gpt-2", 1024), ("bert", 512), ("llama-2", 4096), ("llama-3", 8192)):
        if name.startswith(start):
            reading.assume(f"{usual} tokens")
            return usual
    usual = 4096 if date is not None and date >= "2024" else 2048
    reading.assume(f"{usual} tokens")
    return usual


def told_devices(reading: Reading) -> int:
    """Return the number of devices."""
    row = reading.row
    if (devices := count(row, "n_gpus", {"gpus": 1.0, "chips": 1.0, "gpu": 1.0, "devices": 1.0})) is not None:
        return devices
    if row.get("n_gpus", "").strip():
        raise NotModeled("several numbers of GPUs in one row")
    hours, wall = positive(row, "gpu_hours", {"k": 1e3, "m": 1e6}), positive(row, "wall_hours")
    if data := count(row, "dp"):
        return data * (count(row, "tp") or 1) * (count(row, "pp") or 1) * (count(row, "cp") or 1)
    if hours and wall and round(hours / wall) >= 1:
        return round(hours / wall)
    devices = 8
    if hours is not None:
        while devices * (_RUN_HOURS * 2**0.5 if devices < 2048 else _LONGEST_HOURS) < hours:
            devices *= 2
    reading.assume(f"{devices} devices")
    return devices


def wanted_batch(reading: Reading, shape: TransformerShape, seq_len: int, devices: int, device: Device) -> int | None:
    """Return the sequences of a step that a whole run of such a model takes.

    GPT-3's table 2.1 (arXiv:2005.14165), LLaMA's section 2 (arXiv:2302.13971), Llama 3's table 4 (arXiv:2407.21783).
    Benchmarks rather give each device its share, up to that batch; on TPUs beyond it.
    """
    row = reading.row
    if count(row, "micro_batch_seqs") is not None:
        return None
    size = shape.num_params
    tokens = 2**19 if size < 1e9 else 2**21 if size < 5e9 else 2**22 if size < 2e11 else 2**24
    sequences = max(1, tokens // seq_len)
    whole = row.get("kind", "") == "full_run" or positive(row, "tokens_b", BILLIONS) is not None
    return sequences if whole or (devices > sequences and not device.key.startswith("tpu")) else None


def told_adapters(reading: Reading) -> dict[str, Any]:
    """Return the keywords of a layout that say which adapters are trained; none where all is."""
    row, text = reading.row, reading.text
    if not re.search(r"lora", text):
        return {}
    note = row.get("note", "").lower()
    if rank := re.search(r"\br(?:ank)?[ =:]*(\d+)\b", note):
        size = int(rank[1])
    else:
        size = 16
        reading.assume("rank 16")
    # MLPerf's and Megatron's recipes adapt attention alone, trainers all projections.
    attention_only = "mlperf" in text or "megatron" in text
    return {
        "lora_rank": size,
        "lora_targets": ("q", "k", "v", "o") if attention_only else ("q", "k", "v", "o", "gate", "up", "down"),
        "quantized_base": bool(re.search(r"q-?lora", text)),
        "trains_embeddings": "(emb)" in text,
    }


def told_sharding(reading: Reading) -> str | None:
    """Return what is sharded; None where the row doesn't say."""
    row, text = reading.row, reading.text
    sharding = row.get("sharding", "").lower()
    for source in (sharding, text):
        if re.search(r"fsdp ?= ?0\b", source):
            continue
        if stage := re.search(r"zero[- _]?(?:stage)?[- _]?([0-3])", source):
            return "none" if stage[1] == "0" else f"zero{stage[1]}"
        if re.search(r"grad_op", source):
            return "zero2"
        if re.search(r"hsdp|hybrid", source):
            reading.assume("sharded over all ranks")
        if re.search(r"fsdp|full_shard|fully.sharded|hsdp|hybrid", source):
            # With stages, parameters stay gathered and gradients are reduced once a step (torchtitan's default).
            return "zero1" if (count(row, "pp") or 1) > 1 else "zero3"
        if re.search(r"\bddp\b|no_shard", source):
            return "none"
        if re.search(r"distributed.optimizer", source):
            return "zero1"
    return None


def told_recompute(reading: Reading) -> str | None:
    """Return what is recomputed; None where neither the row nor its software says."""
    row, text = reading.row, reading.text
    words = row.get("recompute", "").lower()
    if re.match(r"selective|select|partial|core|sac", words):
        return "selective"
    if re.match(r"full|yes|true|on\b|1\b|block|uniform|every|all", words):
        return "full"
    if re.match(r"none|no\b|false|off|0", words):
        return "none"
    if "checkpointing" in text:
        return "full"
    tuning = re.search(r"sft|lora|finetun", f"{text} {row.get('kind', '')}")
    if tuning and _TRAINER_STYLE.search(text) and not re.search(r"mlperf|megatron|nemo", text):
        reading.assume("full recompute")  # the recipes of these trainers switch it on
        return "full"
    return None
