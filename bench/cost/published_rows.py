"""Turn a row of published memory figures into an estimate, or into the reason why it can't be one.

What a row doesn't say is assumed by the habits of its framework, never by the row's identity, and every
assumption is written down with the result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from row_cells import NotModeled, Row, count, find_accelerator

from fastbudget.core.errors import InvalidInputError
from fastbudget.cost.transformer.transformer_config import known_presets
from fastbudget.cost.transformer.transformer_estimation import TransformerEstimate, estimate_transformer

UNITS = {"gib": 2**30, "mib": 2**20, "gb": 1e9, "mb": 1e6, "gb(as logged)": 1e9}
# Other adapters of peft are estimated as LoRA of the same rank on queries and values.
ADAPTERS = re.compile(
    r"lora|lokr|loha|hira|vera|miss|oft|boft|dora|road|lily|peanut|deft|frod|osf|psoft|shira|glora", re.I
)
FINETUNING = ("hf trainer", "axolotl", "ms-swift", "llama-factory", "peft", "unsloth", "trl", "torchtune", "fsdp_qlora")
# These load the weights in bfloat16 and train them so, unless DeepSpeed keeps float32 copies.
SIXTEEN_BIT = ("axolotl", "unsloth", "torchtune")
OPTIMIZERS = {
    "8bit": "adamw-8bit",
    "8-bit": "adamw-8bit",
    "sgd": "sgd-momentum",
    "adafactor": "adafactor",
    "lion": "lion",
    "muon": "muon",
}
# Families whose loss transformers computed from shifted float32 logits until 4.47 (November 2024).
SHIFTING = ("llama", "mistral", "mixtral", "gemma", "qwen2", "yi-", "tinyllama")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One published number: its kind is never mixed with others."""

    kind: str
    value_bytes: float


@dataclass(frozen=True, kw_only=True)
class Request:
    arguments: dict[str, Any]
    config: Any
    assumed: list[str] = field(default_factory=list)
    stage: int | None = None


def measurements(row: Row) -> list[Measurement]:
    """Return a row's numbers by kind. A cell may name several: "42 alloc / 63 reserved"."""
    unit = UNITS.get(row.get("unit", "").strip().lower())
    text = row.get("value", "").strip()
    if not text:
        return []
    if unit is None:
        raise NotModeled("unknown unit")
    try:
        return [Measurement(kind=kind_of(row), value_bytes=float(text) * unit)]
    except ValueError:
        pass
    found = re.findall(r"([\d.]+)\s*(alloc\w*|reserved|active)", text.lower())
    if not found:
        raise NotModeled("the value is not one number")
    kinds = {"a": "allocated", "r": "reserved"}
    return [
        Measurement(kind="active" if name == "active" else kinds[name[0]], value_bytes=float(number) * unit)
        for number, name in found
    ]


def kind_of(row: Row) -> str:
    metric = row.get("metric", "").lower()
    if any(word in metric for word in ("formula", "theoretical", "estimated")) or "theoretical" in row.get("flag", ""):
        return "formula"
    for word, kind in (
        ("reserved", "reserved"),
        ("allocated", "allocated"),
        ("active", "active"),
        ("total over", "total over GPUs"),
        ("tracked_stats", "framework log"),
    ):
        if word in metric:
            return kind
    return "nvidia-smi"


def device_of(row: Row) -> tuple[str, bool]:
    """Return the accelerator's name and whether it was assumed."""
    name = row.get("gpu", "").strip()
    if not name:
        return "a100-80gb", True
    return find_accelerator(name, row.get("gpu_mem_gb", "").split(" ")[0]).key, False


def config_of(row: Row) -> Any:
    name = re.sub(r"\(.*?\)", "", row.get("model", "")).strip().lower()
    name = re.sub(r"[\s_]+", "-", name.split("/")[-1]).strip("-")
    trimmed = re.sub(r"-(instruct|chat|hf|it|pt|grpo|(?:un)?cased|v\d(?:\.\d)?|(?<=b-)base|\d+m|\d{4})\b.*$", "", name)
    presets = known_presets()
    tuned = re.sub(r"^(vicuna|alpaca|llama-1|llama1)-", "llama-", re.sub(r"^llama(?=[23])", "llama-", trimmed))
    tuned = re.sub(r"^(meta-|flan-(?!t5))", "", tuned).replace("bloomz", "bloom")
    for one in (name, trimmed, tuned):
        if one in presets:
            return one
    if name == "nanogpt":
        return "gpt2"
    layers, hidden = count(row, "layers"), count(row, "hidden")
    if layers and hidden and (name.startswith(("gpt", "mt-nlg", "megatron"))):
        heads = next(heads for heads in (hidden // 96, hidden // 128, hidden // 64, 8) if heads and hidden % heads == 0)
        return _frozen(
            model_type="gpt2", n_layer=layers, n_embd=hidden, n_head=heads, vocab_size=51200, n_positions=8192
        )
    raise NotModeled("unknown model")


def request_of(row: Row, *, for_verdict: bool = False) -> Request:
    """Return the arguments of an estimate.

    Raises:
        NotModeled: what the row says is not modeled, or it says too little.
    """
    text = " ".join(row.get(key, "") for key in ("method", "sharding", "model")).lower()
    framework = row.get("framework", "").lower()
    _refuse(row, text)
    config, assumed = config_of(row), []
    device, device_assumed = device_of(row)
    if device_assumed:
        assumed.append("hardware")
    arguments: dict[str, Any] = {"hardware": device}
    seq_len = count(row, "seq_len") or _named_length(text)
    if seq_len is None:
        if not for_verdict:
            raise NotModeled("no sequence length")
        seq_len = 1024 if "megatron" in text else 512
        assumed.append(f"{seq_len} tokens")
    arguments["seq_len"] = seq_len
    arguments |= _adapters(row, text, assumed)
    arguments |= _precision(row, arguments)
    arguments |= _parallelism(row, framework, text, assumed)
    if arguments.get("framework") == "deepspeed" and arguments["precision"] == "bf16":
        arguments["precision"] = "bf16-mixed"
    arguments |= _kernels(row, framework, config, assumed)
    _batch(row, framework, arguments, assumed)
    return Request(arguments=arguments, config=config, assumed=assumed)


def _named_length(text: str) -> int | None:
    """Return the length in words such as "seq 32k" or "seq_len=4096"."""
    found = re.search(r"\bseq(?:uence|_len)?(?: length)?[ =:]*(\d+)(k?)", text)
    return int(found[1]) * (1024 if found[2] else 1) if found else None


def _refuse(row: Row, text: str) -> None:
    if row.get("verified", "yes") == "no":
        raise NotModeled("from memory, not read in its source")
    if "vision" in text or "grpo" in text or re.search(r"\brl\b", text):
        raise NotModeled("not plain language-model training")
    frameworks = row.get("framework", "").lower() + " " + text
    if ("nemo" in frameworks or "megatron" in frameworks) and not row.get("tp", "").strip():
        devices = count(row, "n_gpus")
        if devices is None or devices > 1 or "nemo" in frameworks:
            raise NotModeled("the parallel layout is not given")


def _adapters(row: Row, text: str, assumed: list[str]) -> dict[str, Any]:
    method = row.get("method", "").strip().lower()
    if not method or method.startswith("full") or not re.search(r"lora|r ?=|adapter|tuning", method):
        return {}
    if "full" in method.split("(")[0]:
        return {}
    kind = re.split(r"[\s(=]", method)[0]
    rank = re.search(r"\br ?=? ?(\d+)", method) or re.search(r"rank ?=? ?(\d+)", method)
    if "lora" not in kind and not ADAPTERS.search(kind):
        raise NotModeled("an adapter method other than LoRA")
    peft = "peft" in row.get("framework", "").lower()
    if kind not in ("lora", "qlora", "q-lora"):
        if rank is None:
            raise NotModeled("an adapter method other than LoRA")
        assumed.append(f"{kind} estimated as LoRA")
    if rank is None:
        assumed.append("rank 64")
    targets: tuple[str, ...] = ("q", "v") if peft else ("q", "k", "v", "o", "gate", "up", "down")
    if "mlp" in method:
        targets = ("gate", "up", "down")
    return {
        "lora_rank": int(rank[1]) if rank and int(rank[1]) else 64,
        "lora_targets": targets,
        "quantized_base": "qlora" in method or "q-lora" in method or "4bit" in method,
        "trains_embeddings": "emb" in method.split("/")[0],
    }


def _precision(row: Row, arguments: dict[str, Any]) -> dict[str, Any]:
    text = row.get("precision", "").lower()
    if "fp8" in text or "fp4" in text:
        precision = "fp8-mixed"
    elif text == "bfloat16" or "pure" in row.get("method", "").lower():
        precision = "bf16"  # the model's type; "bf16" is a trainer's flag and means mixed
    elif "fp16" in text or "float16" in text or "fp16" in row.get("method", "").lower():
        precision = "fp16-mixed"
    elif text in ("fp32", "float32", "tf32"):
        precision = "fp32"
    elif not text and any(name in row.get("framework", "").lower() for name in SIXTEEN_BIT):
        precision = "bf16"
    else:
        precision = "bf16-mixed"
    optimizer = row.get("optimizer", "").lower()
    found = "adamw"
    for word, name in OPTIMIZERS.items():
        if word in optimizer:
            found = name
    return {"precision": precision, "optimizer": found}


def _parallelism(row: Row, framework: str, text: str, assumed: list[str]) -> dict[str, Any]:
    sizes = {name: count(row, name) or 1 for name in ("tp", "pp", "cp", "ep")}
    devices = count(row, "n_gpus")
    if devices is None:
        if row.get("n_gpus", "").strip():
            raise NotModeled("several numbers of GPUs in one row")
        if re.search(r"zero|fsdp|deepspeed", text):
            raise NotModeled("sharded over a number of GPUs that is not given")
        devices = (count(row, "dp") or 1) * sizes["tp"] * sizes["pp"] * sizes["cp"]
    stage = re.search(r"zero-? ?([123])", text)
    result: dict[str, Any] = {
        "num_devices": devices,
        "tensor_parallel": sizes["tp"],
        "pipeline_parallel": sizes["pp"],
        "context_parallel": sizes["cp"],
        "expert_parallel": sizes["ep"],
    }
    optimizer = row.get("optimizer", "").lower()
    if "megatron" in framework or "megatron" in text or "nemo" in framework or "18 b/param" in optimizer:
        result["framework"] = "megatron"
    elif stage or ("deepspeed" in framework and devices > 1):
        result["framework"] = "deepspeed"
        level = stage[1] if stage else "2" if "lora" in text else "3"
        if not stage:
            assumed.append(f"ZeRO-{level}")
        result["sharding"] = f"zero{level}"
    elif "fsdp" in text:
        result["sharding"] = "zero3"
    if "offload" in text:
        whole = "param" in text or "fsdp" in text
        result["offload"] = "all" if whole else "optimizer"
    if "interleaved" in framework:
        result["virtual_pipeline"] = 2
    return result


def _kernels(row: Row, framework: str, config: Any, assumed: list[str]) -> dict[str, Any]:
    recompute = row.get("recompute", "").lower()
    result: dict[str, Any] = {"compiled": "compile" in framework}
    if recompute.startswith(("none", "full", "selective")):
        result["recompute"] = re.split(r"\W", recompute)[0]
    elif "ckpt" in row.get("method", "").lower() or any(name in framework for name in FINETUNING):
        result["recompute"] = "full"  # the recipes of these trainers switch it on
        assumed.append("full recompute")
    date = row.get("sw_date", "")
    if "megatron" in row.get("method", "").lower() and not date:
        result["attention"] = "eager"  # flash attention is an option of its scripts
    if "megatron" in framework and date[:4].isdigit() and int(date[:4]) <= 2022:
        result["attention"] = "eager"  # FlashAttention came to Megatron-LM in 2023
        result["sequence_parallel"] = "sp" in recompute.split("+")
    if "torchtitan+compile" in framework and date[:4].isdigit() and int(date[:4]) >= 2025:
        result["loss"] = "fused"  # torchtitan compiles the loss since January 2025
    old = any(name in framework for name in FINETUNING) and date[:4].isdigit() and date[:7] < "2024-11"
    if old and isinstance(config, str) and config.startswith(SHIFTING):
        result["loss"] = "shifted"
    if date[:4].isdigit() and date < "2024":
        result["optimizer_kernels"] = "foreach-2.0"  # torch 2.1 came in October 2023
    if re.match(r"peft \d|fsdp_qlora", framework):
        result["keeps_outputs"] = True  # their loops hold the outputs in a variable
    if re.match(r"peft \d", framework):
        result["empties_cache"] = True  # its method comparison does so after every step
    return result


def _batch(row: Row, framework: str, arguments: dict[str, Any], assumed: list[str]) -> None:
    micro = count(row, "micro_batch_seqs")
    if micro is None:
        # Megatron-LM's example script trains with 4 sequences; other recipes start from 1.
        micro = 4 if arguments.get("framework") == "megatron" else 1
        assumed.append(f"micro-batch {micro}")
    pipeline = arguments["pipeline_parallel"]
    devices = arguments["num_devices"]
    data_parallel = max(devices // (arguments["tensor_parallel"] * pipeline * arguments["context_parallel"]), 1)
    batches = 1
    if pipeline > 1:
        # torchtitan's batch size is that of a step; it runs as many micro-batches as stages by default.
        batches = pipeline
        if "torchtitan" in framework:
            micro = max(micro // pipeline, 1)
    total = count(row, "global_batch_seqs")
    if total is not None and total % (micro * data_parallel) == 0 and "torchtitan" not in framework:
        batches = total // (micro * data_parallel)
    arguments["micro_batch_size"] = micro
    arguments["global_batch_size"] = micro * data_parallel * batches


def estimate(request: Request) -> TransformerEstimate:
    """Run the estimate.

    Raises:
        NotModeled: the sizes in the row don't divide each other.
    """
    try:
        return _cached(request.config, tuple(sorted(request.arguments.items())))
    except InvalidInputError as error:
        raise NotModeled("the sizes in the row don't divide each other") from error


@lru_cache(maxsize=1024)
def _cached(config: Any, arguments: tuple[tuple[str, Any], ...]) -> TransformerEstimate:
    return estimate_transformer(dict(config) if isinstance(config, tuple) else config, **dict(arguments))


def _frozen(**values: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(values.items())
