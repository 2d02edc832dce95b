"""Find the shape of the model that a published row names, or build the usual one from what the row says of it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from row_cells import NotModeled, Row, count, positive

from fastbudget.core.errors import InvalidInputError
from fastbudget.cost.transformer.transformer_config import known_presets, read_transformer
from fastbudget.cost.transformer.transformer_shape import TransformerShape

BILLIONS = {"b": 1.0, "bn": 1.0, "m": 1e-3, "t": 1e3, "k": 1e-6}
_SIZE = re.compile(r"^(?:\d+x)?\d+(?:\.\d+)?[bmt]$")
_NOT_TRANSFORMERS = (
    (r"resnet|ssd|retinanet|maskrcnn|unet|efficient|nnu|dlrm|dcn|rnnt|minigo|gnn|rgat|convnext|yolo", "no transformer"),
    (r"diffusion|flux|imagen\b|sdxl", "a diffusion model"),
    (r"mamba|jamba|zamba|rwkv|hyena|retnet|nemotron[-_ ]?(3[-_ .]|h\b)", "layers other than attention"),
    (r"llava|vlm|flamingo|-vl\b", "an image encoder beside the language model"),
    (r"dino|mae\b|clip|siglip|ssl-vision|simclr", "vision training with several views or towers"),
    (r"grpo|\bppo\b|rlhf", "reinforcement learning"),
)
# Words before a model's name that don't tell its size, and other spellings of names that presets have.
_PREFIXES = r"^(meta|nvidia|hf|google|mistralai|huggyllama|eleutherai|the|vicuna|alpaca)-"
_SPELLINGS = (
    (r"^open-?llama-(?!3b)(?=\d)", "llama-"),
    (r"^stable-lm", "stablelm"),
    (r"^llama-?1-", "llama-"),
    (r"^llama-?3\.?1\b", "llama-3.1"),
    (r"^llama-?3\.?([123])(?=-)", r"llama-3.\1"),
    (r"^llama-?([23])(?=-)", r"llama-\1"),
    (r"^llama-3-405b", "llama-3.1-405b"),
    (r"^llama-3[02](\.5)?b", "llama-33b"),
    (r"^llama-65\.\db", "llama-65b"),
    (r"^llama-2-34b", "codellama-34b"),
    (r"^deepseek-?v(?=[23])", "deepseek-v"),
    (r"^bloom(-176b)?$", "bloom-176b"),
    (r"^bloomz", "bloom"),
    (r"^gpt-neox(-20b)?$", "gpt-neox-20b"),
    (r"^gpt-?j$", "gpt-j-6b"),
    (r"^gemma-?([23])(?=-)", r"gemma-\1"),
    (r"^qwen-?([123](?:\.5)?)-", r"qwen\1-"),
    (r"^codellama-", "codellama-"),
    (r"^code-llama-", "codellama-"),
    (r"^starcoder-?2", "starcoder2"),
    (r"^tiny-?llama.*", "tinyllama-1.1b"),
    (r"^mt-nlg.*", "mt-nlg-530b"),
)
# Dosovitskiy et al. 2020 (arXiv:2010.11929) table 1, Zhai et al. 2021 (arXiv:2106.04560) table 2.
_VISION = {
    "ti": (192, 12, 3, 768), "s": (384, 12, 6, 1536), "b": (768, 12, 12, 3072), "l": (1024, 24, 16, 4096),
    "h": (1280, 32, 16, 5120), "g": (1408, 40, 16, 6144),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A model's shape.

    Attributes:
        shape: its sizes.
        assumed: what the row doesn't say.
        seq_len: tokens of an example where the model fixes them (an image's patches).
    """

    shape: TransformerShape
    assumed: tuple[str, ...] = ()
    seq_len: int | None = None


def find_model(row: Row) -> FoundModel:
    """Return the model of a row.

    Raises:
        NotModeled: it isn't a transformer, or neither its name nor sizes tell its shape.
    """
    title = f"{row.get('domain', '')} {row.get('model', '')} {row.get('arch', '')}".lower()
    vision = re.search(r"\b(?:deit|vit)[- _]?(ti|s|b|l|h|g)\w*[-/ _]?(?:p|patch)?(\d+)", title)
    if vision and not re.search(r"dino|mae\b|clip|siglip", title):
        return _vision_model(vision, title)
    for pattern, reason in _NOT_TRANSFORMERS:
        if re.search(pattern, title):
            raise NotModeled(reason)
    name = model_name(row.get("model", ""))
    layers, hidden = count(row, "layers"), count(row, "hidden")
    params = positive(row, "params_b", BILLIONS)
    active = positive(row, "active_params_b", BILLIONS)
    for one in (name, *_sized(name, params)):
        config = named_config(one)
        shape = None if config is None else read_transformer(config)
        if shape is not None and _agrees(shape, layers, hidden, params):
            return FoundModel(shape=_prepared(shape))
    mixture = "moe" in title or "mixture" in title or bool(re.search(r"\d+x\d+|-a\d+(\.\d+)?b", name))
    if mixture and active is None:
        raise NotModeled("a mixture of experts of unknown shape")
    assumed = ["a dense model of the active parameters"] if mixture else []
    if layers and hidden:
        return _from_sizes(row, name, layers, hidden, active or params, assumed)
    size = active or params or _named_billions(name)
    if size is None:
        raise NotModeled("unknown model")
    return _usual_model(size * 1e9, assumed)


def model_name(text: str) -> str:
    """Return a name in lower case with "-" between words: ``"LLAMA3_70B (dropless)"`` is ``"llama-3-70b"``."""
    name = re.sub(r"\(.*?\)|\[.*?\]", " ", text.split("/")[-1] if re.match(r"^[\w-]+/", text) else text).lower()
    name = re.sub(r"[\s_]+", "-", name.strip()).strip("-")
    name = re.sub(r"(?<=[a-z])-(?=v\d)", "", name) if name.startswith("deepseek") else name
    name = re.sub(_PREFIXES, "", name)
    for pattern, spelling in _SPELLINGS:
        name = re.sub(pattern, spelling, name)
    return name


def named_config(name: str) -> str | dict[str, Any] | None:
    """Return the preset or the facts that a name means: words after the size don't matter."""
    words = name.split("-")
    presets = known_presets()
    for end in range(len(words), 0, -1):
        # A size that was cut off tells models apart, unless one is left: "mpt-1b-redpajama-200b" is "mpt-1b".
        if any(map(_SIZE.match, words[end:])) and not any(map(_SIZE.match, words[:end])):
            return None
        part = "-".join(words[:end])
        if part in presets:
            return part
        for names, config in _facts():
            if any(re.fullmatch(pattern, part) for pattern in names):
                return config
    return None


def _sized(name: str, billions: float | None) -> list[str]:
    """Return the name with its size where it has none: "llama-2" of 6.7 billion is "llama-2-7b"."""
    if billions is None or any(map(_SIZE.match, name.split("-"))):
        return []
    sizes = [f"{billions:g}b", f"{round(billions)}b"] if billions >= 1 else [f"{round(billions * 1000)}m"]
    return [f"{name}-{size}" for size in sizes]


def _agrees(shape: TransformerShape, layers: int | None, hidden: int | None, billions: float | None) -> bool:
    """Return whether a named model is the row's: a name such as "GPT-3" may stand for a family."""
    if layers not in (None, shape.layers) or hidden not in (None, shape.hidden):
        return False
    sizes = (shape.num_params / 1e9, shape.num_active_params / 1e9)
    return billions is None or any(0.75 < billions / size < 1.33 for size in sizes)


@cache
def _facts() -> tuple[tuple[tuple[str, ...], dict[str, Any]], ...]:
    table = tomllib.loads(Path(__file__).with_name("model_facts.toml").read_text())
    return tuple((tuple(entry["names"]), entry["config"]) for entry in table["models"])


def _prepared(shape: TransformerShape) -> TransformerShape:
    """Return the shape as it is trained: longer tables of positions don't change its time."""
    shape = replace(shape, max_positions=None)
    # Pre-training computes logits of the masked tokens only, about 15%.
    return replace(shape, has_head=False) if shape.family in ("bert", "roberta") else shape


def _from_sizes(
    row: Row, name: str, layers: int, hidden: int, billions: float | None, assumed: list[str]
) -> FoundModel:
    heads = count(row, "heads") or _heads(hidden)
    if hidden % heads:
        raise NotModeled("the sizes in the row don't divide each other")
    vocab = 32000 if name.startswith(("llama", "mistral")) else 51200
    intermediate = 4 * hidden
    if billions is not None:
        per_layer = (billions * 1e9 - vocab * hidden) / layers
        fitted = (per_layer - 4 * hidden**2) / (2 * hidden)
        if fitted > 0 and not 0.85 < fitted / intermediate < 1.15:
            intermediate = max(64, round(min(fitted, 16 * hidden) / 64) * 64)
            assumed = [*assumed, "the inner width from the parameters"]
    return FoundModel(shape=_dense(layers, hidden, heads, intermediate, vocab), assumed=tuple(assumed))


def _usual_model(params: float, assumed: list[str]) -> FoundModel:
    """Return a model of the usual proportions: hidden = 128 x layers from 7B on, 64 x layers for the smallest.

    Kaplan et al. 2020 (arXiv:2001.08361, section 3) find loss hardly depends on the ratio between 50 and 150;
    GPT-3 175B and LLaMA have 100 to 128.
    """
    vocab = 51200
    ratio = 128 if params > 5e9 else 96 if params > 1e9 else 64
    layers = next(layers for layers in range(2, 400) if _params(layers, ratio * layers, vocab) >= params)
    hidden = max(128, round(((params / layers / 12) ** 0.5) / 128) * 128)
    shape = _dense(layers, hidden, _heads(hidden), 4 * hidden, vocab)
    return FoundModel(shape=shape, assumed=(*assumed, "layers and width from the parameters"))


def _params(layers: int, hidden: int, vocab: int) -> int:
    return 12 * layers * hidden**2 + vocab * hidden


def _dense(layers: int, hidden: int, heads: int, intermediate: int, vocab: int) -> TransformerShape:
    try:
        shape = read_transformer(
            {
                "model_type": "gpt2",
                "vocab_size": vocab,
                "n_embd": hidden,
                "n_layer": layers,
                "n_head": heads,
                "n_inner": intermediate,
                "n_positions": 2048,
            }
        )
    except InvalidInputError as error:
        raise NotModeled("the sizes in the row don't make a model") from error
    return _prepared(shape)


def _heads(hidden: int) -> int:
    return next((hidden // size for size in (128, 96, 64, 80) if hidden % size == 0), 1)


def _named_billions(name: str) -> float | None:
    found = re.search(r"(?:^|-)(\d+(?:\.\d+)?)([bmt])(?:-|$)", name)
    return float(found[1]) * BILLIONS[found[2]] if found else None


def _vision_model(found: re.Match[str], title: str) -> FoundModel:
    hidden, layers, heads, intermediate = _VISION[found[1]]
    patch = int(found[2])
    size = re.search(r"(?:@|res(?:olution)? ?|\b)(224|256|336|384|448|512)\b", title)
    pixels = int(size[1]) if size else 224
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": patch * patch * 3,  # the patches' projection
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }
    shape = replace(read_transformer(config), max_positions=None)
    assumed = () if size else ("224 pixels",)
    return FoundModel(shape=shape, assumed=assumed, seq_len=(pixels // patch) ** 2 + 1)
