"""Small random models of many `transformers` architectures, with inputs, for memory checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

BATCH, LENGTH, VOCABULARY = 4, 128, 2000

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """A factory of a model and one of its inputs."""

    factory: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def _tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (BATCH, length))


def _language() -> Inputs:
    return {"input_ids": _tokens(), "labels": _tokens()}


def _masked_language() -> Inputs:
    return {
        "input_ids": _tokens(),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
        "labels": _tokens(),
    }


def _image(size: int = 64, classes: int = 10) -> Inputs:
    return {"pixel_values": torch.randn(BATCH, 3, size, size), "labels": torch.randint(0, classes, (BATCH,))}


def _clip() -> Inputs:
    return {"input_ids": _tokens(32), "pixel_values": torch.randn(BATCH, 3, 64, 64), "return_loss": True}


def _sequence_to_sequence() -> Inputs:
    return {"input_ids": _tokens(), "labels": _tokens(64)}


def _whisper() -> Inputs:
    return {"input_features": torch.randn(BATCH, 80, 200), "labels": _tokens(32)}


def _speech() -> Inputs:
    return {"input_values": torch.randn(BATCH, 8000), "labels": torch.randint(1, 32, (BATCH, 10))}


_DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DECODER_MHA = {k: v for k, v in _DECODER.items() if k != "num_key_value_heads"}
_ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_VISION = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 8,
    "num_labels": 10,
}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 128,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "max_position_embeddings": 512,
    "decoder_start_token_id": 2,
    **_IDS,
}

_TABLE: dict[str, tuple[str, str, dict[str, Any], Callable[[], Inputs]]] = {
    # name: (config class, model class, config, inputs)
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 128,
            "n_layer": 4,
            "n_head": 4,
            "n_positions": 512,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        _language,
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _DECODER, _language),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _DECODER, _language),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**_DECODER, "head_dim": 32}, _language),
    "mistral": ("MistralConfig", "MistralForCausalLM", _DECODER, _language),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**_DECODER, "head_dim": 32}, _language),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**_DECODER, "head_dim": 32}, _language),
    "phi": ("PhiConfig", "PhiForCausalLM", _DECODER, _language),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", _DECODER, _language),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
        _language,
    ),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {
            **_DECODER,
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
        },
        _language,
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "ffn_dim": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            "word_embed_proj_dim": 128,
            **_IDS,
        },
        _language,
    ),
    "gpt-neox": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {**_DECODER_MHA, "intermediate_size": 512},
        _language,
    ),
    "gptj": (
        "GPTJConfig",
        "GPTJForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 128,
            "n_layer": 4,
            "n_head": 4,
            "n_positions": 512,
            "rotary_dim": 16,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        _language,
    ),
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            **_IDS,
        },
        _language,
    ),
    "bloom": (
        "BloomConfig",
        "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 128, "n_layer": 4, "n_head": 4, **_IDS},
        _language,
    ),
    "mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 3, "state_size": 8, **_IDS},
        _language,
    ),
    "bert": ("BertConfig", "BertForMaskedLM", _ENCODER, _masked_language),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", _ENCODER, _masked_language),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaForMaskedLM", _ENCODER, _masked_language),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {
            "vocab_size": VOCABULARY,
            "dim": 128,
            "hidden_dim": 512,
            "n_layers": 4,
            "n_heads": 4,
            "pad_token_id": 0,
        },
        _masked_language,
    ),
    "albert": (
        "AlbertConfig",
        "AlbertForMaskedLM",
        {**_ENCODER, "embedding_size": 64, "num_hidden_groups": 2},
        _masked_language,
    ),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {**_ENCODER, "embedding_size": 64}, _masked_language),
    "mpnet": ("MPNetConfig", "MPNetForMaskedLM", _ENCODER, _masked_language),
    "deberta-v2": (
        "DebertaV2Config",
        "DebertaV2ForMaskedLM",
        {**_ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 32},
        _masked_language,
    ),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {**_ENCODER, "cls_token_id": 1, "sep_token_id": 2},
        _masked_language,
    ),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 128,
            "d_kv": 32,
            "d_ff": 512,
            "num_layers": 3,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            "eos_token_id": 2,
        },
        _sequence_to_sequence,
    ),
    "bart": (
        "BartConfig",
        "BartForConditionalGeneration",
        {**_BART, "forced_eos_token_id": 2},
        _sequence_to_sequence,
    ),
    "pegasus": (
        "PegasusConfig",
        "PegasusForConditionalGeneration",
        {**_BART, "forced_eos_token_id": 2},
        _sequence_to_sequence,
    ),
    "vit": ("ViTConfig", "ViTForImageClassification", _VISION, _image),
    "deit": ("DeiTConfig", "DeiTForImageClassification", _VISION, _image),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", _VISION, _image),
    "swin": (
        "SwinConfig",
        "SwinForImageClassification",
        {
            "image_size": 64,
            "patch_size": 4,
            "embed_dim": 32,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "num_labels": 10,
        },
        _image,
    ),
    "resnet": (
        "ResNetConfig",
        "ResNetForImageClassification",
        {"embedding_size": 32, "hidden_sizes": [64, 128], "depths": [2, 2], "num_labels": 10},
        _image,
    ),
    "convnext": (
        "ConvNextConfig",
        "ConvNextForImageClassification",
        {"hidden_sizes": [32, 64, 96, 128], "depths": [2, 2, 2, 2], "image_size": 64, "num_labels": 10},
        _image,
    ),
    "clip": (
        "CLIPConfig",
        "CLIPModel",
        {
            "text_config": {**_ENCODER, "num_hidden_layers": 3},
            "vision_config": {k: v for k, v in _VISION.items() if k != "num_labels"},
            "projection_dim": 64,
        },
        _clip,
    ),
    "siglip": (
        "SiglipConfig",
        "SiglipModel",
        {
            "text_config": {**_ENCODER, "num_hidden_layers": 3},
            "vision_config": {k: v for k, v in _VISION.items() if k != "num_labels"},
        },
        _clip,
    ),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            **_BART,
            "num_mel_bins": 80,
            "max_source_positions": 100,
            "max_target_positions": 64,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        _whisper,
    ),
    "wav2vec2": (
        "Wav2Vec2Config",
        "Wav2Vec2ForCTC",
        {
            "vocab_size": 32,
            "hidden_size": 128,
            "intermediate_size": 512,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "conv_dim": [64] * 7,
            "layerdrop": 0.0,
            "mask_time_prob": 0.0,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
        },
        _speech,
    ),
}


def architecture(name: str) -> Architecture:
    """Return the architecture of that name."""
    config_class, model_class, options, inputs = _TABLE[name]

    def factory() -> nn.Module:
        config = getattr(transformers, config_class)(**options)
        return getattr(transformers, model_class)(config)

    return Architecture(factory, inputs)


NAMES = tuple(_TABLE)
