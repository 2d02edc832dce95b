"""How fast a replica reads prompts and makes tokens, by batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...core.interval import Interval
from ...core.units import SECONDS_PER_HOUR
from ...hardware.devices import Device
from ...hardware.prices import Price
from ..runtime.calibration import Calibration
from ..runtime.step_time import StepTime, estimate_step_time
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_flops import step_flops
from ..transformer.transformer_shape import TransformerShape

# A kernel of a graph still starts after the one before it: about a tenth of a launch by the host. An assumption.
_GRAPH_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class BatchSpeed:
    """What a replica does with batches of one size.

    Attributes:
        batch_size: sequences answered at once.
        prefill_s: seconds to read the prompts: the time to the first token.
        decode_step_s: seconds of a token for every sequence, the mean over the output.
        request_s: seconds from the prompts to the last token.
        output_tokens_per_s: tokens made per second of the whole, per replica.
        output_tokens_per_s_per_device: the same per device.
        usd_per_million_input_tokens: what reading a million prompt tokens costs; None where no price is known.
        usd_per_million_output_tokens: what making a million tokens costs.
    """

    batch_size: int
    prefill_s: Interval
    decode_step_s: Interval
    request_s: Interval
    output_tokens_per_s: Interval
    output_tokens_per_s_per_device: Interval
    usd_per_million_input_tokens: Interval | None
    usd_per_million_output_tokens: Interval | None


@dataclass(frozen=True, kw_only=True)
class Replica:
    """Devices that answer batches together.

    Attributes:
        shape: the model.
        device: each of them.
        layout: how they share it: a forward pass over one prompt.
        output_len: tokens made for each prompt.
        cuda_graphs: kernels are launched as one graph.
        software: what runs it.
        calibration: a measured machine.
    """

    shape: TransformerShape
    device: Device
    layout: TrainingLayout
    output_len: int
    cuda_graphs: bool
    software: str | None
    calibration: Calibration | None

    def speed(self, batch_size: int, price: Price | None) -> BatchSpeed:
        """Return how fast batches of a size are, and what their tokens cost."""
        reading = self._reading(batch_size)
        step = self._timed(reading)
        # Logits of the prompt's last token only.
        spared = step.parts.get("head_and_loss", 0.0) * (1.0 - 1.0 / reading.seq_len)
        prefill_s = _at_least(self._launched(step, spared), self._arithmetic_s(reading))
        making = self.decoding(batch_size, self.layout.seq_len + (self.output_len + 1) // 2)
        decode_step_s = _at_least(self._launched(self._timed(making)), self._fetching_s(making))
        decode_s = decode_step_s.scaled(self.output_len)
        request_s = prefill_s + decode_s  # one time model, so their errors are one error
        made, count = batch_size * self.output_len, self.layout.num_devices
        rate = Interval(made / request_s.high, made / request_s.mid, made / request_s.low)
        return BatchSpeed(
            batch_size=batch_size,
            prefill_s=prefill_s,
            decode_step_s=decode_step_s,
            request_s=request_s,
            output_tokens_per_s=rate,
            output_tokens_per_s_per_device=rate.scaled(1 / count),
            usd_per_million_input_tokens=_usd_per_million(prefill_s, batch_size * reading.seq_len, count, price),
            usd_per_million_output_tokens=_usd_per_million(decode_s, made, count, price),
        )

    def decoding(self, batch_size: int, length: int) -> TrainingLayout:
        """Return the layout of making a token when each sequence has a length."""
        return replace(
            self.layout, global_batch_size=batch_size, micro_batch_size=batch_size, seq_len=length, mode="decode"
        )

    def extrapolating(self) -> tuple[str, ...]:
        """Return what lies outside the runs that the time model was fitted on."""
        return self._timed(self.decoding(1, self.layout.seq_len)).extrapolating

    def _reading(self, batch_size: int) -> TrainingLayout:
        return replace(self.layout, global_batch_size=batch_size, micro_batch_size=batch_size)

    def _timed(self, layout: TrainingLayout) -> StepTime:
        return estimate_step_time(self.shape, layout, self.device, software=self.software, calibration=self.calibration)

    def _launched(self, step: StepTime, spared_s: float = 0.0) -> Interval:
        """Return a step's time without what is spared, and as a graph without most of the waiting for the host."""
        if self.cuda_graphs:
            spared_s += step.parts.get("launch_floor", 0.0) * (1.0 - _GRAPH_SHARE)
        return step.seconds.scaled(max(0.0, 1.0 - spared_s / step.seconds.mid))

    def _arithmetic_s(self, layout: TrainingLayout) -> float:
        """Seconds that a prompt's FLOPs take at the device's peak, the head's not counted."""
        kind = {"fp32": "fp32", "fp16": "fp16"}.get(layout.precision, "bf16")
        peak = getattr(self.device, f"{kind}_flops_per_s") or self.device.fp16_flops_per_s
        if peak is None:
            return 0.0
        head = 2.0 * self.shape.vocab * self.shape.embedding_width * layout.global_batch_size * layout.seq_len
        return (step_flops(self.shape, layout) - head) / (peak * layout.num_devices)

    def _fetching_s(self, layout: TrainingLayout) -> float:
        """Seconds that fetching the weights which a token needs, and the cache, takes at the peak bandwidth."""
        if self.device.memory_bytes_per_s is None:
            return 0.0
        embedding = 0 if self.shape.tied else self.shape.embedding_params  # looked up, not read
        weights = (self.shape.num_active_params - embedding) * layout.compute_bytes
        return (weights + kv_cache_bytes(self.shape, layout)) / (self.device.memory_bytes_per_s * layout.num_devices)


def kv_cache_bytes(shape: TransformerShape, layout: TrainingLayout) -> int:
    """Return the bytes of keys and values of a batch, over all devices."""
    total = 0
    for block, count in shape.block_counts:
        attention = block.attention
        length = layout.seq_len if attention.window is None else min(layout.seq_len, attention.window)
        total += count * length * attention.cached_width
    return total * layout.micro_batch_size * layout.compute_bytes


def _at_least(seconds: Interval, floor: float) -> Interval:
    """Return the interval above what the device's peaks allow."""
    return Interval(max(seconds.low, floor), max(seconds.mid, floor), max(seconds.high, floor))


def _usd_per_million(seconds: Interval, tokens: int, num_devices: int, price: Price | None) -> Interval | None:
    if price is None:
        return None
    return seconds.scaled(num_devices * price.usd_per_device_hour / SECONDS_PER_HOUR / tokens * 1e6)
