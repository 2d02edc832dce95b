"""Turn a row of published training runs into a request for an estimate and what was measured, or the reason why not.

The CSV has the columns of published_runs.csv, any of which may be missing or empty. What a row doesn't say is
assumed by the habits of its framework and by what fits the memory, never by the row's identity, and every
assumption is written down with the run.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from assumed_layouts import MEGATRON, REPLICATED, Chosen, Given, Style, choose, needed_bytes, style_of
from model_shapes import BILLIONS, FoundModel, find_model, model_name
from row_cells import NotModeled, Row, count, find_accelerator, positive, precision_of, publisher_of, read_rows
from row_cells import software_date as date_of
from run_measures import Measure, measure_of

from fastbudget.core.errors import InvalidInputError
from fastbudget.cost.transformer.training_layout import TrainingLayout
from fastbudget.cost.transformer.transformer_shape import TransformerShape
from fastbudget.hardware import Device

KILO = {"k": 1024.0}
_SUSPECT = re.compile(r"inconsistent|incomplete|estimate\b|scaled from|suspect|implausible|none published", re.I)
_FUSED_LOSS = re.compile(r"llm\.c|megatron|nemo|neox|maxtext|jax|mlperf|liger|chunked|cut.cross|compile")
_TRAINER_STYLE = re.compile(r"hf trainer|axolotl|swift|llama-?factory|peft|unsloth|trl|torchtune|\blora\b")
# A full run whose number of devices isn't told is taken to have lasted three weeks, as LLaMA's; the largest up to
# three months.
_RUN_HOURS, _LONGEST_HOURS = 21 * 24, 90 * 24


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A row that can be estimated.

    Attributes:
        run_id: the row's name.
        publisher: who published it.
        model: what the row calls the model.
        domain: the row's domain.
        shape: the model.
        layout: how it was trained.
        device: on what.
        software: framework and date as published, such as ``"Megatron-Bridge 26.04 NeMo Container (2026-04)"``.
        software_date: year, or year and month.
        measure: what was measured.
        assumed: what the row doesn't say.
    """

    run_id: str
    publisher: str
    model: str
    domain: str
    shape: TransformerShape
    layout: TrainingLayout
    device: Device
    software: str | None
    software_date: str | None
    measure: Measure
    assumed: tuple[str, ...]

    @property
    def step_time_s(self) -> float:
        """Seconds of an optimizer step over all devices; of a whole run its average."""
        return self.measure.step_time_s

    @property
    def tokens_per_step(self) -> int:
        """Tokens of an optimizer step over all devices."""
        return self.layout.global_batch_size * self.layout.seq_len

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``fb.estimate_transformer``."""
        values = {field.name: getattr(self.layout, field.name) for field in fields(self.layout)}
        tokens = self.measure.tokens
        return {**values, "hardware": self.device, "software": self.software, "tokens": tokens}


def read_runs(path: Path) -> tuple[list[PublishedRun], Counter[str]]:
    """Return the runs of a table that can be estimated, and why the others can't with how many they are."""
    runs: list[PublishedRun] = []
    reasons: Counter[str] = Counter()
    for row in read_rows(path):
        try:
            runs.append(read_run(row))
        except NotModeled as reason:
            reasons[str(reason)] += 1
    return runs, reasons


def read_run(row: Row) -> PublishedRun:
    """Return the run of a row.

    Raises:
        NotModeled: what the row says is not modeled, not certain, or too little.
    """
    if row.get("verified", "").lower() in ("no", "false", "0"):
        raise NotModeled("from memory, not read in its source")
    if _SUSPECT.search(row.get("flag", "")):
        raise NotModeled("flagged as suspect")
    found = find_model(row)
    device = find_accelerator(row.get("gpu", ""), row.get("gpu_mem_gb", ""))
    assumed = list(found.assumed)
    text = " ".join(row.get(key, "") for key in ("framework", "model", "sharding", "domain", "locator")).lower()
    date = date_of(row)
    precision = _precision(row, device, text, assumed)
    seq_len = _seq_len(row, found, text, date, assumed)
    adapters = _adapters(row, text, assumed)
    devices = _devices(row, assumed)
    batch = _wanted_batch(row, found.shape, seq_len, devices, device)
    given = Given(
        devices=devices,
        seq_len=seq_len,
        precision=precision,
        tensor=count(row, "tp"),
        pipeline=count(row, "pp"),
        context=count(row, "cp"),
        micro_batch=count(row, "micro_batch_seqs"),
        global_batch=count(row, "global_batch_seqs") or batch,
        batch_told=count(row, "global_batch_seqs") is not None,
        fused_loss=bool(_FUSED_LOSS.search(text)),
        sharding=_sharding(row, text, assumed),
        recompute=_recompute(row, text, assumed),
        experts=count(row, "ep"),
        lora="lora_rank" in adapters,
        quantized=adapters.get("quantized_base", False),
    )
    software = f"{row.get('framework', '')} {row.get('domain', '')}".lower()
    if not row.get("framework", "").strip() and "zero" in row.get("sharding", "").lower():
        software = "deepspeed"
    style, chosen = _layout(found.shape, device, given, software, assumed)
    layout = _training_layout(row, found.shape, given, chosen, style, adapters, text, date, assumed)
    measure = measure_of(row, found.shape, layout, device)
    framework = row.get("framework", "").strip()
    software = f"MLPerf {framework}" if row.get("domain", "").startswith("mlperf") else framework
    return PublishedRun(
        run_id=row.get("run_id", ""),
        publisher=publisher_of(row),
        model=row.get("model", ""),
        domain=row.get("domain", ""),
        shape=found.shape,
        layout=layout,
        device=device,
        software=(f"{software} ({date})" if date else software) if software.strip() else None,
        software_date=date,
        measure=measure,
        assumed=(*assumed, *measure.assumed),
    )


def _precision(row: Row, device: Device, text: str, assumed: list[str]) -> str:
    if "mlperf" in text and not row.get("precision", ""):
        # Closed-division submissions run what the device is fastest in and quality allows.
        plain = re.search(r"tinygrad|deepspeed", text) or not device.fp8_flops_per_s or device.key.startswith("tpu")
        precision = precision_of(row, device)[0] if plain else "fp8-mixed"
        assumed.append(f"precision {precision}")
        return precision
    precision, assumption = precision_of(row, device)
    if assumption:
        assumed.append(assumption)
    return precision


def _seq_len(row: Row, found: FoundModel, text: str, date: str | None, assumed: list[str]) -> int:
    if found.seq_len:
        return found.seq_len
    if "mlperf-bert" in text:
        # Submissions leave out padding, about half of the 512: Krell et al. 2021 (arXiv:2107.02027).
        assumed.append("256 of 512 tokens are no padding")
        return 256
    if (length := count(row, "seq_len", KILO)) is not None:
        return length
    if named := re.search(r"\bseq(?:[ _]?len(?:gth)?)?[ =:]*(\d+)(k?)\b", text):
        return int(named[1]) * (1024 if named[2] else 1)
    name = model_name(row.get("model", ""))
    for start, usual in (("gpt2", 1024), ("gpt-2", 1024), ("bert", 512), ("llama-2", 4096), ("llama-3", 8192)):
        if name.startswith(start):
            assumed.append(f"{usual} tokens")
            return usual
    usual = 4096 if date is not None and date >= "2024" else 2048
    assumed.append(f"{usual} tokens")
    return usual


def _devices(row: Row, assumed: list[str]) -> int:
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
    assumed.append(f"{devices} devices")
    return devices


def _wanted_batch(row: Row, shape: TransformerShape, seq_len: int, devices: int, device: Device) -> int | None:
    """Return the sequences of a step that a whole run of such a model takes.

    GPT-3's table 2.1 (arXiv:2005.14165), LLaMA's section 2 (arXiv:2302.13971), Llama 3's table 4 (arXiv:2407.21783).
    Benchmarks rather give each device its share, up to that batch; on TPUs beyond it.
    """
    if count(row, "micro_batch_seqs") is not None:
        return None
    size = shape.num_params
    tokens = 2**19 if size < 1e9 else 2**21 if size < 5e9 else 2**22 if size < 2e11 else 2**24
    sequences = max(1, tokens // seq_len)
    whole = row.get("kind", "") == "full_run" or positive(row, "tokens_b", BILLIONS) is not None
    return sequences if whole or (devices > sequences and not device.key.startswith("tpu")) else None


def _adapters(row: Row, text: str, assumed: list[str]) -> dict[str, Any]:
    if not re.search(r"lora", text):
        return {}
    note = row.get("note", "").lower()
    if rank := re.search(r"\br(?:ank)?[ =:]*(\d+)\b", note):
        size = int(rank[1])
    else:
        size = 16
        assumed.append("rank 16")
    # MLPerf's and Megatron's recipes adapt attention alone, trainers all projections.
    attention_only = "mlperf" in text or "megatron" in text
    return {
        "lora_rank": size,
        "lora_targets": ("q", "k", "v", "o") if attention_only else ("q", "k", "v", "o", "gate", "up", "down"),
        "quantized_base": bool(re.search(r"q-?lora", text)),
        "trains_embeddings": "(emb)" in text,
    }


def _sharding(row: Row, text: str, assumed: list[str]) -> str | None:
    sharding = row.get("sharding", "").lower()
    for source in (sharding, text):
        if re.search(r"fsdp ?= ?0\b", source):
            continue
        if stage := re.search(r"zero[- _]?(?:stage)?[- _]?([0-3])", source):
            return "none" if stage[1] == "0" else f"zero{stage[1]}"
        if re.search(r"grad_op", source):
            return "zero2"
        if re.search(r"hsdp|hybrid", source):
            assumed.append("sharded over all ranks")
        if re.search(r"fsdp|full_shard|fully.sharded|hsdp|hybrid", source):
            # With stages, parameters stay gathered and gradients are reduced once a step (torchtitan's default).
            return "zero1" if (count(row, "pp") or 1) > 1 else "zero3"
        if re.search(r"\bddp\b|no_shard", source):
            return "none"
        if re.search(r"distributed.optimizer", source):
            return "zero1"
    return None


def _recompute(row: Row, text: str, assumed: list[str]) -> str | None:
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
        assumed.append("full recompute")  # the recipes of these trainers switch it on
        return "full"
    return None


def _layout(
    shape: TransformerShape, device: Device, given: Given, software: str, assumed: list[str]
) -> tuple[Style, Chosen]:
    alone = Chosen(tensor=1, pipeline=1, context=1, sharding="none", recompute="full", micro_batch=1)
    fits = needed_bytes(shape, given, alone) < 0.7 * device.memory_bytes
    pipeline = (given.pipeline or 1) > 1
    style = style_of(software, device, pipeline=pipeline, sharding=given.sharding, replicated_fits=fits)
    if given.devices == 1:
        style = replace(REPLICATED, framework=style.framework)
    chosen = choose(shape, device, given, style)
    if chosen is None:  # no layout divides the batch as it is; it is rounded below
        chosen = choose(shape, device, replace(given, global_batch=None), style)
    if chosen is None:
        raise NotModeled("the sizes in the row don't divide each other")
    if given.micro_batch is None:
        assumed.append(f"micro-batch {chosen.micro_batch}")
    if given.tensor is None and given.pipeline is None and style.model_parallel and given.devices > 1:
        assumed.append(f"TP {chosen.tensor}, PP {chosen.pipeline}, CP {chosen.context}")
    if given.recompute is None:
        assumed.append(f"recompute {chosen.recompute}")
    if given.sharding is None and given.devices > 1:
        assumed.append(f"sharding {chosen.sharding}")
    return style, chosen


def _training_layout(
    row: Row, shape: TransformerShape, given: Given, chosen: Chosen, style: Style, adapters: dict[str, Any],
    text: str, date: str | None, assumed: list[str],
) -> TrainingLayout:  # fmt: skip
    data = given.devices // (chosen.tensor * chosen.pipeline * chosen.context)
    micro, batch = _batch(row, given, chosen, data, text, assumed)
    experts = max(block.mlp.experts for block in shape.all_blocks)
    expert_parallel = count(row, "ep") or 1
    if experts and not count(row, "ep") and style.model_parallel:
        expert_parallel = next(
            size for size in (8, 4, 2, 1) if experts % size == 0 and (data * chosen.tensor) % size == 0
        )
        assumed.append(f"EP {expert_parallel}")
    chunks = _chunks(row, shape, given, chosen, style, batch // (micro * data), text, assumed)
    # FlashAttention came to Megatron-LM and its forks in 2023.
    eager = bool(re.search(r"megatron-deepspeed|nvidia dle", text)) or (date is not None and date < "2023")
    try:
        layout = TrainingLayout(
            seq_len=given.seq_len,
            global_batch_size=batch,
            micro_batch_size=micro,
            num_devices=given.devices,
            tensor_parallel=chosen.tensor,
            pipeline_parallel=chosen.pipeline,
            virtual_pipeline=chunks,
            context_parallel=chosen.context,
            expert_parallel=expert_parallel,
            sharding=chosen.sharding if given.devices > 1 else "none",
            recompute=chosen.recompute,
            precision=given.precision,
            optimizer="adamw-8bit" if re.search(r"8-?bit adam", text) else "adamw",
            offload="all" if re.search(r"cpu[ _-]?offload", text) else "none",
            framework=style.framework,
            attention="eager" if eager else "flash",
            compiled="compile" in text,
            **adapters,
        )
        layout.check(shape)
    except InvalidInputError as error:
        raise NotModeled("the sizes in the row don't divide each other") from error
    return layout


def _chunks(
    row: Row, shape: TransformerShape, given: Given, chosen: Chosen, style: Style, micro_batches: int, text: str,
    assumed: list[str],
) -> int:  # fmt: skip
    """Return the chunks of layers that a stage holds."""
    if chosen.pipeline == 1:
        return 1
    told = count(row, "vp")
    if told is not None or "interleaved" in text:
        chunks = told or 2
        return chunks if chosen.pipeline * chunks <= shape.layers else 1
    if style is not MEGATRON or re.search(r"deepspeed|neox|1f1b", text):
        return 1
    if given.pipeline and micro_batches >= 4 * given.pipeline:
        return 1
    # Recipes interleave where bubbles would be long, with some four layers to a chunk.
    chunks = max(1, round(shape.layers / (4 * chosen.pipeline)))
    assumed.append(f"{chunks} chunks a stage")
    return chunks


def _batch(row: Row, given: Given, chosen: Chosen, data: int, text: str, assumed: list[str]) -> tuple[int, int]:
    """Return micro-batch and global batch in sequences."""
    micro = chosen.micro_batch
    if "titan" in text and chosen.pipeline > 1:
        # torchtitan's batch size is that of a step: as many micro-batches as stages by default.
        micro = max(micro // chosen.pipeline, 1)
    per_pass = micro * data
    if given.global_batch is not None:
        batch = max(1, round(given.global_batch / per_pass)) * per_pass
        if given.batch_told and abs(batch / given.global_batch - 1) > 0.25:
            raise NotModeled("the sizes in the row don't divide each other")
        if batch != given.global_batch or not given.batch_told:
            assumed.append(f"a batch of {batch}")
        return micro, batch
    accumulation = re.search(r"grad(?:ient)?[-_ ]?acc\w*[ =:]*(?:of )?(\d+)", row.get("note", "").lower())
    if accumulation:
        return micro, per_pass * int(accumulation[1])
    filling = 1 if chosen.pipeline == 1 else chosen.pipeline if "titan" in text else 8 * chosen.pipeline
    batch = per_pass * filling
    assumed.append(f"a batch of {batch}")
    return micro, batch
