"""Read a transformer's shape from a Hugging Face ``config.json``, a mapping or a preset's name."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from ...core.errors import InvalidInputError, did_you_mean, one_of
from .classic_families import (
    read_bert,
    read_bloom,
    read_falcon,
    read_gpt2,
    read_gpt_neox,
    read_gptj,
    read_opt,
    read_t5,
)
from .config_values import ConfigValues
from .deepseek_families import DEEPSEEK_FAMILIES, read_deepseek
from .llama_families import LLAMA_FAMILIES, read_llama_family
from .transformer_shape import BlockShape, TransformerShape

_INT64_MAX = 2**63 - 1

_READERS: dict[str, Callable[[ConfigValues], TransformerShape]] = {
    "gpt2": read_gpt2,
    "gptj": read_gptj,
    "gpt_neox": read_gpt_neox,
    "opt": read_opt,
    "bloom": read_bloom,
    "falcon": read_falcon,
    **{name: partial(read_bert, family=name) for name in ("bert", "roberta")},
    **{name: partial(read_t5, family=name) for name in ("t5", "mt5")},
    **{name: partial(read_llama_family, family=name) for name in LLAMA_FAMILIES},
    **{name: partial(read_deepseek, family=name) for name in DEEPSEEK_FAMILIES},
}


def read_transformer(config: str | PathLike[str] | Mapping[str, Any] | TransformerShape) -> TransformerShape:
    """Return the shape of a model.

    Args:
        config: a path of a ``config.json`` or of the folder that holds one, its contents, or the name of a
            preset (``"llama-7b"``, ``"gpt2"``; see :func:`known_presets`).

    Raises:
        InvalidInputError: there is no such file or preset, the family is unknown, a key is missing, or sizes
            make no sense (none at all, heads that don't divide, more than int64 parameters).
    """
    if isinstance(config, TransformerShape):
        return config
    values, name = _values(config)
    family = values.get("model_type")
    if family is None:
        raise InvalidInputError(f"{name}: the key 'model_type' is missing. Known: {one_of(_READERS)}.")
    if family not in _READERS:
        text = values.get("text_config")
        hint = " Its text part is under 'text_config': pass that." if isinstance(text, Mapping) else ""
        raise InvalidInputError(
            f"{name}: unknown model_type {family!r}.{did_you_mean(str(family), _READERS)}{hint} "
            f"Known: {one_of(_READERS)}."
        )
    shape = _READERS[family](ConfigValues(values, name))
    if shape.num_params > _INT64_MAX:
        raise InvalidInputError(f"{name}: the model has {shape.num_params} parameters, more than int64 can count.")
    return _with_shared_layers(shape)


def _with_shared_layers(shape: TransformerShape) -> TransformerShape:
    """Make equal layers one object, so that whatever runs over layers tells quickly which are alike."""
    kinds: dict[BlockShape, BlockShape] = {}
    return replace(
        shape,
        blocks=tuple(kinds.setdefault(block, block) for block in shape.blocks),
        encoder_blocks=tuple(kinds.setdefault(block, block) for block in shape.encoder_blocks),
    )


def known_presets() -> tuple[str, ...]:
    """Return the names of the models that need no configuration file."""
    return tuple(_presets())


def _values(config: str | PathLike[str] | Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    if isinstance(config, Mapping):
        return config, "The configuration"
    if hasattr(config, "to_dict"):  # a transformers configuration object
        return config.to_dict(), type(config).__name__
    preset = _presets().get(str(config).lower())
    if preset is not None:
        return preset, str(config)
    path = Path(config)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise InvalidInputError(
            f"{str(config)!r} is neither a configuration file nor a preset."
            f"{did_you_mean(str(config).lower(), _presets())} Presets: {one_of(_presets())}."
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise InvalidInputError(f"{path} must hold one JSON object, got {type(values).__name__}.")
    return values, str(path)


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__package__).joinpath("transformer_presets.toml").read_text())
