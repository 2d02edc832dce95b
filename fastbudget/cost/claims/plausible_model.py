"""What a claim's model needs: its shape, its FLOPs, and the fastest that the time model allows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from ...core.errors import InvalidInputError
from ...hardware.devices import Device
from ..runtime.step_time import estimate_step_time
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_config import known_presets, read_transformer
from ..transformer.transformer_flops import forward_flops_per_token
from ..transformer.transformer_shape import TransformerShape
from .claim import Claim

# A size as people round it ("7B" for 6.74) still means the model of that size.
_ROUNDED = 0.09
# A mixture of experts is meant only by its exact size: a dense model of it computes several times more.
_EXACT = 0.01
# Names such as "gpt2" also stand for the family; then the stated size counts.
_OTHER_SIZE = 0.25
_USUAL_SEQ_LEN = 2048
# What is fastest where a claim doesn't say its software.
_FAST_SOFTWARE = ("MLPerf v5.1", "Megatron 2025", "llm.c 2025")
_PRECISIONS = {
    "bf16": "bf16-mixed",
    "fp16": "fp16-mixed",
    "fp8": "fp8-mixed",
    "fp4": "fp4-mixed",
    "tf32": "tf32",
    "fp32": "fp32",
}


@dataclass(frozen=True, kw_only=True)
class ClaimedModel:
    """The model that a claim is about.

    Attributes:
        shape: its shape, said or typical of its size.
        words: how it was found.
        seq_len: tokens of a sequence, said or usual.
        flops_per_token: model FLOPs of training on a token, causal attention at half.
        flops_by_convention: the fewest and the most that people count for the same: without attention, and with
            all of its square and the embedding.
    """

    shape: TransformerShape
    words: str
    seq_len: int
    flops_per_token: float
    flops_by_convention: tuple[float, float]


def model_of(claim: Claim) -> ClaimedModel | None:
    """Return the model of a claim, or None when it says neither a name nor a size."""
    shape, words = _shape_of(claim)
    if shape is None:
        return None
    usual = min(_USUAL_SEQ_LEN, shape.max_positions or _USUAL_SEQ_LEN)
    seq_len = claim.seq_len or usual
    # With adapters the frozen weights need no gradients.
    passes = 2.0 if claim.lora else 3.0
    half = forward_flops_per_token(shape, seq_len)
    none = forward_flops_per_token(shape, 1)
    embedding = 2.0 * shape.vocab * shape.embedding_width
    return ClaimedModel(
        shape=shape,
        words=words,
        seq_len=seq_len,
        flops_per_token=passes * half,
        flops_by_convention=(passes * none, passes * (none + 2.0 * (half - none) + embedding)),
    )


def fastest_tokens_per_s(claim: Claim, model: ClaimedModel, device: Device, num_devices: int) -> float | None:
    """Return the most tokens per second and device that the 80% interval of any usual layout allows."""
    precision = _PRECISIONS[claim.precision or ("bf16" if device.bf16_flops_per_s else "fp16")]
    batch_tokens = claim.batch_tokens
    sequences = max(1, round(batch_tokens / model.seq_len)) if batch_tokens else 0
    best: tuple[float, TrainingLayout] | None = None
    for tensor, pipeline, micro in product((1, 2, 4, 8), (1, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64)):
        shared = tensor * pipeline
        if num_devices % shared or pipeline > model.shape.layers:
            continue
        ranks = num_devices // shared
        per_pass = micro * ranks
        if sequences and per_pass > max(sequences, ranks):
            continue
        count = max(1, round(sequences / per_pass)) if sequences else max(1, 4 * pipeline)
        try:
            layout = TrainingLayout(
                seq_len=model.seq_len,
                global_batch_size=per_pass * count,
                micro_batch_size=micro,
                num_devices=num_devices,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                sharding="none" if num_devices == 1 else "zero1",
                precision=precision,
                framework="megatron",
                loss="fused",
                compiled=True,
                lora_rank=16 if claim.lora else None,
                quantized_base=claim.quantized and claim.lora,
            )
            layout.check(model.shape)
            rate = _highest_rate(model.shape, layout, device, None)
        except InvalidInputError:
            continue
        if best is None or rate > best[0]:
            best = rate, layout
    if best is None:
        return None
    return max(best[0], *(_highest_rate(model.shape, best[1], device, software) for software in _FAST_SOFTWARE))


def _highest_rate(shape: TransformerShape, layout: TrainingLayout, device: Device, software: str | None) -> float:
    """Return tokens per second and device at the upper end of the interval."""
    step = estimate_step_time(shape, layout, device, software=software)
    return layout.global_batch_size * layout.seq_len / (step.seconds.low * layout.num_devices)


def _shape_of(claim: Claim) -> tuple[TransformerShape | None, str]:
    if claim.config is not None:
        shape = read_transformer(claim.config)
        stated = claim.params
        if stated is None or abs(stated - shape.num_params) <= _OTHER_SIZE * stated:
            name = claim.config if isinstance(claim.config, str) else shape.family
            return shape, f"{name}, {shape.num_params / 1e9:.3g} B parameters"
    if claim.params is None:
        return None, ""
    if claim.active_params is not None:
        shape = _typical_shape(claim.active_params)
        return shape, f"a dense model of the {claim.active_params / 1e9:.3g} B active parameters"
    near = _preset_of_size(claim.params)
    if near is not None:
        return read_transformer(near), f"{near}, the known model nearest to {claim.params / 1e9:.3g} B parameters"
    return _typical_shape(claim.params), f"a typical model of {claim.params / 1e9:.3g} B parameters"


@lru_cache(maxsize=256)
def _preset_of_size(params: float) -> str | None:
    """Return the decoder of about that size, or None."""

    def apart(shape: TransformerShape) -> float:
        return abs(shape.num_params - params) / params

    near = [
        (apart(shape), name)
        for name, shape in _decoders().items()
        if apart(shape) <= (_EXACT if any(block.mlp.experts for block in shape.blocks) else _ROUNDED)
    ]
    return min(near)[1] if near else None


@lru_cache(maxsize=1)
def _decoders() -> dict[str, TransformerShape]:
    shapes = {name: read_transformer(name) for name in known_presets()}
    return {name: shape for name, shape in shapes.items() if shape.causal and not shape.encoder_blocks}


@lru_cache(maxsize=256)
def _typical_shape(params: float) -> TransformerShape:
    """Return a dense decoder of that size with layers 128 times narrower than wide (Kaplan et al. 2020)."""
    hidden = max(128, round((params * 128 / 12) ** (1 / 3) / 128) * 128)
    vocab = 32_000
    layers = max(1, round((params - vocab * hidden) / (12 * hidden * hidden)))
    return read_transformer(
        {
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": round(8 * hidden / 3),
            "num_hidden_layers": layers,
            "num_attention_heads": hidden // 128,
            "vocab_size": vocab,
            "tie_word_embeddings": True,
        }
    )
