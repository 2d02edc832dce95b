"""The checks: each yields what it finds wrong, and notes what it compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ...core.units import format_bytes, format_count, format_seconds
from .claim import Claim
from .findings import Finding
from .peaks import dense_peak, is_right_peak, name_of_peak
from .plausible_model import ClaimedModel, fastest_tokens_per_s

# MFU and FLOP/s beside the conventions there are: attention counted, at half, or not.
_CONVENTIONS = 0.20
# Hardware FLOPs with everything recomputed, beside the model's.
_RECOMPUTED = 4 / 3
# Rates of the same thing, rounded as people round.
_ROUNDING = 0.15
# A run takes longer than its steps: evaluation, saves, restarts. More than this is another run.
_LONGEST_RUN = 2.0
# Above this no published training run is; fused kernels on one device come near.
_HIGHEST_MFU = 0.80
# The time model's interval holds 80%: leave its neighborhood before calling a claim implausible.
_BEYOND_INTERVAL = 1.10


@dataclass
class CheckedClaim:
    """A claim, what follows from it, and what was compared so far.

    Attributes:
        claim: the claim.
        model: its model; None: not said.
        checked: what was compared with what, in words.
    """

    claim: Claim
    model: ClaimedModel | None
    checked: list[str] = field(default_factory=list)

    @property
    def peak(self) -> float | None:
        """Dense peak of the device for the claim's precision."""
        return None if self.claim.device is None else dense_peak(self.claim.device, self.claim.precision)[0]

    @property
    def rates(self) -> dict[str, float]:
        """Tokens per second and device, by what in the claim they follow from."""
        claim, count = self.claim, self.claim.num_devices
        rates = {}
        if claim.tokens_per_s_per_device:
            rates["tokens/s per device"] = claim.tokens_per_s_per_device
        if claim.tokens_per_s and count:
            rates["tokens/s"] = claim.tokens_per_s / count
        if claim.batch_tokens and claim.step_time_s and count:
            rates["the step time"] = claim.batch_tokens / claim.step_time_s / count
        if claim.tokens_per_s_unlabeled:
            rates["tokens/s"] = self._labeled(claim.tokens_per_s_unlabeled, list(rates.values()))
        return rates

    @property
    def run_rates(self) -> dict[str, float]:
        """The same over the whole run, pauses included."""
        claim, count = self.claim, self.claim.num_devices
        rates = {}
        if claim.total_tokens and claim.gpu_hours:
            rates["the GPU-hours"] = claim.total_tokens / (claim.gpu_hours * 3600)
        if claim.total_tokens and claim.wall_s and count:
            rates["the run's length"] = claim.total_tokens / (claim.wall_s * count)
        return rates

    def _labeled(self, value: float, others: list[float]) -> float:
        """Return a rate per device that may be one of all devices: what fits the rest, else what is possible."""
        count = self.claim.num_devices or 1
        if others:
            return min((value, value / count), key=lambda rate: abs(rate / others[0] - 1))
        needed = self.model.flops_per_token if self.model else None
        too_fast = bool(needed and self.peak and value * needed > self.peak * _HIGHEST_MFU)
        too_slow = bool(needed and self.peak and value / count * needed < 0.02 * self.peak)
        return value if count == 1 or (too_slow and not too_fast) else value / count


def check_utilization(checked: CheckedClaim) -> Iterator[Finding]:
    """No more than 100% of the peak; hardware FLOPs are no fewer than the model's."""
    claim = checked.claim
    for name in ("mfu", "hfu"):
        value = getattr(claim, name)
        if value is None:
            continue
        checked.checked.append(f"{name.upper()} {value:.1%} against 100%")
        if value > 1:
            yield Finding(
                kind="impossible",
                about="mfu",
                message=f"{name.upper()} of {value:.0%}: a device can't do more than its peak. "
                + _why_above(checked, value),
            )
        elif value > _HIGHEST_MFU:
            yield Finding(
                kind="implausible",
                about="mfu",
                message=f"{name.upper()} of {value:.0%} is above every published training run (about 75% at most).",
            )
    if claim.mfu and claim.hfu and claim.hfu < claim.mfu * 0.99:
        yield Finding(
            kind="contradictory",
            about="mfu",
            message=f"HFU {claim.hfu:.1%} is below MFU {claim.mfu:.1%}: recomputation can only add FLOPs.",
        )


def _why_above(checked: CheckedClaim, value: float) -> str:
    device, peak = checked.claim.device, checked.peak
    if device is None or peak is None:
        return "The usual cause is another device's peak in the denominator."
    for words, wrong in (("the A100's 312 TFLOP/s", 312e12), ("the V100's 125 TFLOP/s", 125e12)):
        if wrong < 0.95 * peak and value * wrong < peak:
            return (
                f"Divided by {words} by mistake, it would be {value * wrong / peak:.0%} of the "
                f"{format_count(peak, 'FLOP/s')} of {device.name}."
            )
    return "The FLOPs of a step, the step's time or the number of devices must be wrong."


def check_peak(checked: CheckedClaim) -> Iterator[Finding]:
    """The peak that is stated, or that MFU and FLOP/s imply, is the dense one of the precision."""
    claim, device = checked.claim, checked.claim.device
    if device is None:
        return
    used = {}
    if claim.peak_flops_per_s:
        used["The stated peak"] = (claim.peak_flops_per_s, 0.04)
    achieved = _flops_per_s(checked)
    if claim.mfu and achieved and claim.mfu <= 1:
        used["FLOP/s over MFU, the peak that was divided by,"] = (achieved / claim.mfu, 0.06)
    _, precision = dense_peak(device, claim.precision)
    for words, (value, tolerance) in used.items():
        checked.checked.append(f"{words.lower()} {format_count(value, 'FLOP/s')} against the datasheet")
        if is_right_peak(value, device, claim.precision, tolerance=tolerance):
            continue
        name = name_of_peak(value, device, claim.precision, tolerance=tolerance)
        dense = checked.peak
        known = f"the dense {precision} peak of {device.name} is " + (
            format_count(dense, "FLOP/s") if dense else "not known"
        )
        if name is None and dense is None:
            continue
        yield Finding(
            kind="contradictory" if name is None else "implausible",
            about="peak",
            message=f"{words} is {format_count(value, 'FLOP/s')}, {name or 'no known peak'}; {known}.",
        )


def _flops_per_s(checked: CheckedClaim) -> float | None:
    """FLOP/s of one device as stated."""
    claim = checked.claim
    if claim.flops_per_s_per_device:
        return claim.flops_per_s_per_device
    if claim.flops_per_s and claim.num_devices:
        return claim.flops_per_s / claim.num_devices
    if claim.flops_per_s_unlabeled:
        value, count = claim.flops_per_s_unlabeled, claim.num_devices or 1
        return value / count if checked.peak and value > 2 * checked.peak and count > 1 else value
    return None


def check_rate(checked: CheckedClaim) -> Iterator[Finding]:
    """Stated FLOP/s stay below the peak."""
    claim, device, achieved = checked.claim, checked.claim.device, _flops_per_s(checked)
    if device is None or achieved is None or checked.peak is None:
        return
    _, precision = dense_peak(device, claim.precision)
    checked.checked.append(f"{format_count(achieved, 'FLOP/s')} per device against the {precision} peak")
    if achieved > checked.peak:
        yield _above_peak(
            checked,
            achieved,
            f"{format_count(achieved, 'FLOP/s')} per device is more than the dense {precision} peak of {device.name}, "
            f"{format_count(checked.peak, 'FLOP/s')}.",
        )


def _above_peak(checked: CheckedClaim, achieved: float, words: str) -> Finding:
    claim, device = checked.claim, checked.claim.device
    assert device is not None
    name = name_of_peak(achieved, device, claim.precision, tolerance=0.02)
    if name is not None:
        words = f"{words} It is {name}."
    elif claim.precision is None:
        for kind, name in (("fp8", "FP8"), ("fp4", "FP4")):
            narrow = getattr(device, f"{kind}_flops_per_s")
            if narrow is not None and achieved <= _HIGHEST_MFU * narrow:
                words = f"{words} It is possible in {name}, {format_count(narrow, 'FLOP/s')}: say so."
                return Finding(kind="implausible", about="speed", message=words)
    elif claim.precision in ("tf32", "fp32") and achieved <= (device.bf16_flops_per_s or 0):
        words = f"{words} It is possible in bf16, {format_count(device.bf16_flops_per_s or 0, 'FLOP/s')}."
    return Finding(kind="impossible", about="speed", message=words)


def check_precision(checked: CheckedClaim) -> Iterator[Finding]:
    """The device has the precision at all."""
    claim, device = checked.claim, checked.claim.device
    if device is None or claim.precision is None:
        return
    least = {"bf16": 8.0, "tf32": 8.0, "fp8": 8.9}.get(claim.precision)
    try:
        capability = float(device.architecture or "")
    except ValueError:
        return
    checked.checked.append(f"{claim.precision} on {device.name}")
    if least is not None and capability < least:
        yield Finding(
            kind="impossible",
            about="precision",
            message=f"{device.name} has no {claim.precision} arithmetic (compute capability {device.architecture}, "
            f"{least} is needed).",
        )


def check_speed(checked: CheckedClaim) -> Iterator[Finding]:
    """What the steps imply stays below the peak, agrees with MFU and FLOP/s, and is what the time model allows."""
    claim, device, model = checked.claim, checked.claim.device, checked.model
    if device is None or model is None or checked.peak is None:
        return
    stated = _flops_per_s(checked)
    _, precision = dense_peak(device, claim.precision)
    for source, rate in (checked.rates | checked.run_rates).items():
        implied = rate * model.flops_per_token
        share = implied / checked.peak
        checked.checked.append(f"{source}: {share:.0%} of the {precision} peak for {model.words}")
        words = (
            f"By {source}, {format_count(implied, 'FLOP/s')} per device for {model.words}: {share:.0%} of the dense "
            f"{precision} peak of {device.name}"
        )
        if share > 1:
            yield _above_peak(checked, implied, f"{words}.")
        elif share > _HIGHEST_MFU:
            yield Finding(kind="implausible", about="speed", message=f"{words}, above every published training run.")
        else:
            yield from _beyond_model(checked, source, rate, model)
        if source not in checked.rates:
            continue
        least, most = (rate * flops for flops in model.flops_by_convention)
        if claim.mfu and claim.mfu <= 1 and not _within(claim.mfu * checked.peak, least, most):
            name = name_of_peak(implied / claim.mfu, device, claim.precision, tolerance=0.12)
            cause = f" It was divided by {name}." if name else ""
            yield Finding(kind="contradictory", about="mfu", message=f"MFU {claim.mfu:.1%} is stated. {words}.{cause}")
        if stated and not _within(stated, least, most * _RECOMPUTED):
            yield Finding(
                kind="contradictory",
                about="speed",
                message=f"{format_count(stated, 'FLOP/s')} per device are stated. {words}.",
            )


def _within(value: float, least: float, most: float) -> bool:
    return least / (1 + _CONVENTIONS) <= value <= most * (1 + _CONVENTIONS)


def _beyond_model(checked: CheckedClaim, source: str, rate: float, model: ClaimedModel) -> Iterator[Finding]:
    claim, device = checked.claim, checked.claim.device
    assert device is not None
    count = claim.num_devices
    if count is None:
        return
    fastest = fastest_tokens_per_s(claim, model, device, count)
    if fastest is None:
        return
    checked.checked.append(f"{source}: {rate:,.0f} tokens/s per device against {fastest:,.0f} at most")
    if rate > fastest * _BEYOND_INTERVAL:
        step = ""
        if claim.batch_tokens:
            best, said = claim.batch_tokens / (fastest * count), claim.batch_tokens / (rate * count)
            step = f" A step takes {format_seconds(best)} or more, not {format_seconds(said)}."
        yield Finding(
            kind="implausible",
            about="speed",
            message=f"By {source}, {rate:,.0f} tokens/s per device for {model.words}; the fastest layout on {count} "
            f"{device.name} is predicted to reach {fastest:,.0f} at the upper end of its interval.{step}",
        )


def check_memory(checked: CheckedClaim) -> Iterator[Finding]:
    """No more memory than there is, and room for the weights."""
    claim, device = checked.claim, checked.claim.device
    if device is None:
        return
    capacity, count = device.memory_bytes * 1.015, claim.num_devices or 1
    if claim.memory_bytes:
        checked.checked.append(f"{format_bytes(claim.memory_bytes)} against the memory of {device.name}")
        words = (
            f"{format_bytes(claim.memory_bytes)} ({claim.memory_bytes / 1e9:,.0f} GB) of memory are stated; "
            f"{device.name} has {format_bytes(device.memory_bytes)}"
        )
        if claim.memory_bytes > capacity * (1 if claim.memory_is_per_device else count):
            yield Finding(kind="impossible", about="memory", message=f"{words}.")
        elif capacity < claim.memory_bytes <= 2 * capacity and count > 2 and not claim.memory_is_per_device:
            yield Finding(
                kind="implausible", about="memory", message=f"{words}. Say so if it is the sum over all devices."
            )
    if checked.model is None or claim.offloads or claim.num_devices is None:
        return
    # Gradients can be used up layer by layer, so weights alone are sure to be there.
    width = 0.5 if claim.quantized else 1.0 if claim.precision in ("fp8", "fp4") else 2.0
    needed = width * checked.model.shape.num_params
    if claim.params and claim.active_params:
        needed = width * claim.params
    checked.checked.append(f"{format_bytes(needed)} of weights against the memory of {count} devices")
    if needed > capacity * count:
        yield Finding(
            kind="impossible",
            about="memory",
            message=f"The weights of {checked.model.words} take {format_bytes(needed)} at least, more than the "
            f"{format_bytes(device.memory_bytes * count)} of {count} {device.name}. Was it offloaded or quantized?",
        )


def check_agreement(checked: CheckedClaim) -> Iterator[Finding]:
    """Figures that say the same thing twice say the same."""
    claim, count = checked.claim, checked.claim.num_devices
    rates = list(checked.rates.items())
    for (one, first), (other, second) in pairwise(rates):
        yield from _agree(checked, f"tokens/s per device by {one}", first, f"by {other}", second, _ROUNDING)
    for source, slow in checked.run_rates.items():
        for other, fast in rates:
            checked.checked.append(f"{source} against {other}")
            if slow > fast * (1 + _ROUNDING) or slow * _LONGEST_RUN < fast:
                yield _apart("run", f"tokens/s per device by {source}", slow, f"by {other}", fast)
    if claim.gpu_hours and claim.wall_s and count:
        hours = claim.wall_s * count / 3600
        yield from _agree(checked, "GPU-hours", claim.gpu_hours, f"{count} devices for the time", hours, _ROUNDING)
    if claim.steps and claim.batch_tokens and claim.total_tokens:
        tokens = claim.steps * claim.batch_tokens
        yield from _agree(checked, "tokens", claim.total_tokens, "steps x batch", tokens, _ROUNDING)
    if claim.steps and claim.step_time_s:
        stepping = claim.steps * claim.step_time_s
        for words, seconds in (
            ("the run's length", claim.wall_s),
            ("GPU-hours over devices", claim.gpu_hours * 3600 / count if claim.gpu_hours and count else None),
        ):
            if seconds is None:
                continue
            checked.checked.append(f"{words} against steps x step time")
            if stepping > seconds * (1 + _ROUNDING / 2) or stepping * _LONGEST_RUN < seconds:
                yield Finding(
                    kind="contradictory",
                    about="run",
                    message=f"{claim.steps:,.0f} steps of {format_seconds(claim.step_time_s)} take "
                    f"{format_seconds(stepping)}; {words} is {format_seconds(seconds)}.",
                )
    if claim.cost_usd and claim.usd_per_device_hour and claim.gpu_hours:
        usd = claim.usd_per_device_hour * claim.gpu_hours
        yield from _agree(checked, "USD", claim.cost_usd, "price x GPU-hours", usd, _ROUNDING)
    if claim.total_flops and claim.total_tokens and checked.model:
        flops = claim.total_tokens * checked.model.flops_per_token
        yield from _agree(checked, "FLOPs", claim.total_flops, "tokens x FLOPs per token", flops, 2 * _CONVENTIONS)


def _agree(
    checked: CheckedClaim, words: str, first: float, other: str, second: float, tolerance: float
) -> Iterator[Finding]:
    checked.checked.append(f"{words} against {other}")
    if max(first, second) > min(first, second) * (1 + tolerance):
        yield _apart("run", words, first, other, second)


def _apart(about: str, words: str, first: float, other: str, second: float) -> Finding:
    return Finding(
        kind="contradictory",
        about=about,
        message=f"{words[0].upper()}{words[1:]}: {format_count(first)}; {other}: {format_count(second)}. "
        "Both can't be right.",
    )


CHECKS = (
    check_utilization,
    check_precision,
    check_rate,
    check_peak,
    check_speed,
    check_memory,
    check_agreement,
)
