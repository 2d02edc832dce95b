"""What a published row measured, as seconds of an optimizer step."""

from __future__ import annotations

import re
from dataclasses import dataclass

from model_shapes import BILLIONS
from row_cells import NotModeled, Row, count, positive

from fastbudget.cost.transformer.training_layout import TrainingLayout
from fastbudget.cost.transformer.transformer_flops import step_flops
from fastbudget.cost.transformer.transformer_shape import TransformerShape
from fastbudget.hardware import Device

HOURS = {"h": 1.0, "hours": 1.0, "k": 1e3, "m": 1e6, "d": 24.0, "days": 24.0}
_SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3}
# No training reaches more of a dense peak: the best products of single operations lie at about this share.
_BEST_SHARE = 0.9
_RATES = {"k": 1e3, "m": 1e6, "tok/s": 1.0, "tokens/s": 1.0}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A published figure.

    Attributes:
        kind: the column it comes from.
        step_time_s: seconds of an optimizer step over all devices, averaged where the figure is of a run.
        gpu_hours: of the whole run where that is what was published, else None.
        tokens: trained on in those hours, else None.
        assumed: what the figure's meaning rests on.
    """

    kind: str
    step_time_s: float
    gpu_hours: float | None = None
    tokens: int | None = None
    assumed: tuple[str, ...] = ()

    @property
    def whole_run(self) -> bool:
        """Whether start-up, evaluations and restarts are in the figure."""
        return self.gpu_hours is not None


def measure_of(row: Row, shape: TransformerShape, layout: TrainingLayout, device: Device) -> Measure:
    """Return a row's figure: the step's time, else tokens, else examples per second, else a run's GPU-hours, else MFU.

    Raises:
        NotModeled: there is none, its unit isn't certain, or it is faster than the device can be.
    """
    found = (
        _step_time(row, layout)
        or _token_rate(row, layout)
        or _example_rate(row, shape, layout, device)
        or _run_hours(row, layout)
        or _model_flops(row, shape, layout, device)
    )
    if found is None:
        raise NotModeled(_why_none(row))
    peak = layout.num_devices * _fastest(row, device)
    if step_flops(shape, layout) / found.step_time_s > _BEST_SHARE * peak:
        raise NotModeled("faster than the hardware can be")
    return found


def _step_time(row: Row, layout: TrainingLayout) -> Measure | None:
    seconds = positive(row, "sec_per_step", _SECONDS)
    told = count(row, "global_batch_seqs")
    if seconds is None or (told is None and not _accumulation_told(row)):
        return None
    # A batch that was rounded to divide takes as much longer.
    scale = layout.global_batch_size / told if told else 1.0
    return Measure(kind="sec_per_step", step_time_s=seconds * scale)


def _accumulation_told(row: Row) -> bool:
    if count(row, "micro_batch_seqs") is None:
        return False
    return bool(re.search(r"grad(ient)?[-_ ]?acc", row.get("note", "").lower()))


def _token_rate(row: Row, layout: TrainingLayout) -> Measure | None:
    rate = positive(row, "tokens_per_s_per_gpu", _RATES)
    if rate is None:
        return None
    tokens = layout.global_batch_size * layout.seq_len
    return Measure(kind="tokens_per_s_per_gpu", step_time_s=tokens / (rate * layout.num_devices))


def _example_rate(row: Row, shape: TransformerShape, layout: TrainingLayout, device: Device) -> Measure | None:
    rate = positive(row, "samples_per_s_total", _RATES)
    if rate is None:
        return None
    seconds = layout.global_batch_size / rate
    if "as-logged" not in row.get("flag", ""):
        return Measure(kind="samples_per_s_total", step_time_s=seconds)
    # Some submitters log tokens: the unit is the one that makes the rate possible.
    peak = layout.num_devices * _fastest(row, device)
    busy = step_flops(shape, layout) / seconds / peak
    for unit, tokens in (("sequences", 1), ("tokens", layout.seq_len)):
        if 0.03 < busy / tokens < 1.0:
            return Measure(
                kind="samples_per_s_total", step_time_s=seconds * tokens, assumed=(f"throughput in {unit} per second",)
            )
    raise NotModeled("the unit of the throughput isn't certain")


def _run_hours(row: Row, layout: TrainingLayout) -> Measure | None:
    hours = positive(row, "gpu_hours", HOURS)
    wall = positive(row, "wall_hours", HOURS)
    if hours is None and wall is not None and count(row, "n_gpus"):
        hours = wall * layout.num_devices
    billions = positive(row, "tokens_b", BILLIONS)
    samples = re.search(r"\bsamples (\d+(?:\.\d+)?)", row.get("note", "").lower())
    if hours is None or (billions is None and samples is None):
        return None
    tokens = billions * 1e9 if billions is not None else float(samples[1]) * layout.seq_len  # type: ignore[index]
    steps = tokens / (layout.global_batch_size * layout.seq_len)
    return Measure(
        kind="gpu_hours",
        step_time_s=hours * 3600 / layout.num_devices / steps,
        gpu_hours=hours,
        tokens=round(tokens),
    )


def _model_flops(row: Row, shape: TransformerShape, layout: TrainingLayout, device: Device) -> Measure | None:
    """Return a rate of FLOPs by the usual convention: 6 per parameter and token, all scores (arXiv:2204.02311)."""
    tokens = layout.global_batch_size * layout.seq_len
    flops = conventional_flops_per_token(shape, layout.seq_len) * tokens
    peak = device.bf16_flops_per_s or device.fp16_flops_per_s
    recomputing = 4 / 3 if layout.recompute == "full" else 1.0
    for kind, factor in (
        ("model_tflops_per_gpu", 1.0), ("mfu_pct", 1.0), ("hw_tflops_per_gpu", recomputing), ("hfu_pct", recomputing),
    ):  # fmt: skip
        value = positive(row, kind)
        if value is None or (kind.endswith("pct") and peak is None):
            continue
        rate = value / 100 * (peak or 0.0) if kind.endswith("pct") else value * 1e12
        return Measure(
            kind=kind,
            step_time_s=flops * factor / (rate * layout.num_devices),
            assumed=("FLOPs counted as 6N and full attention",),
        )
    return None


def conventional_flops_per_token(shape: TransformerShape, seq_len: int) -> float:
    """Return 6 per active parameter that multiplies, and 12 per layer, width and token seen (PaLM, appendix B)."""
    params = shape.num_active_params - shape.vocab * shape.embedding_width * (shape.has_head and not shape.tied)
    attention = sum(6.0 * (b.attention.query_width + b.attention.out_width) * seq_len for b in shape.all_blocks)
    return 6.0 * params + attention


def _fastest(row: Row, device: Device) -> float:
    """Return the peak of the precision that the row names, of eight bits where it names none."""
    told = row.get("precision", "").lower()
    peaks = [device.bf16_flops_per_s, device.fp16_flops_per_s, device.tf32_flops_per_s, device.fp32_flops_per_s]
    if not re.fullmatch(r"(amp[ _])?(bf16|bfloat16|fp16|float16|fp32|tf32)", told):
        peaks.append(device.fp8_flops_per_s)
    if "fp4" in told:
        peaks.append(device.fp4_flops_per_s)
    return max((peak for peak in peaks if peak), default=2.5e15)


def _why_none(row: Row) -> str:
    if positive(row, "sec_per_step", _SECONDS):
        return "seconds per step without a batch size"
    if positive(row, "gpu_hours", HOURS) or positive(row, "wall_hours", HOURS):
        return "hours without the tokens or examples they took"
    return "no figure of time"
