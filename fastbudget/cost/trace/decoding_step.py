"""Generating a token with a key-value cache: the prompt, then one token after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ...core.errors import InvalidInputError

if TYPE_CHECKING:
    from torch import nn

    from .training_step import Inputs


def run_decoding(model: nn.Module, inputs: Inputs, *, prompt_done: Callable[[Any], None] = lambda cache: None) -> None:
    """Run the prompt, keep its cache, and run the token after it.

    As ``transformers`` generates: the prompt's scores are computed for its last token only.

    Args:
        model: takes ``input_ids``, ``past_key_values`` and ``use_cache`` and returns ``past_key_values``.
        inputs: the prompt: a mapping with ``input_ids`` [batch, length], and ``attention_mask`` if there is
            padding.
        prompt_done: is given the cache between the two.

    Raises:
        InvalidInputError: the inputs hold no ``input_ids``, or the model returns no cache.
    """
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get("input_ids"), torch.Tensor):
        raise InvalidInputError(
            "mode='decode' requires inputs as a mapping with input_ids [batch, length], got "
            f"{sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__}."
        )
    prompt = {name: value for name, value in inputs.items() if name != "labels"}
    accepted = inspect.signature(model.forward).parameters
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
    outputs = model(**prompt, use_cache=True, **last_only)
    cache = getattr(outputs, "cache", None) or getattr(outputs, "past_key_values", None)
    del outputs
    if cache is None:
        raise InvalidInputError(
            f"mode='decode' requires a model that returns past_key_values, and {type(model).__name__} does "
            "not. Use mode='infer' for a single forward pass."
        )
    prompt_done(cache)
    following = {**prompt, "input_ids": prompt["input_ids"][:, -1:]}
    mask = prompt.get("attention_mask")
    if mask is not None:
        following["attention_mask"] = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=1)
    # Releases of transformers differ in the name.
    following["cache" if "cache" in accepted else "past_key_values"] = cache
    model(**following, use_cache=True, **last_only)
