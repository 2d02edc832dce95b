"""The time of a step of a traced module, with its parts, an interval, and what lies outside the measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from ...core.interval import Interval
from ...hardware.devices import Device
from ..calibration.scaled_reference import guessed_calibration
from ..runtime.calibration import Calibration
from ..trace.tracing import Trace
from .data_parallel import DataParallelLoad, exposed_seconds, links_between
from .fresh_memory import fresh_bytes
from .operation_rates import FittedRates, MeasuredRates, OperationRates
from .operation_timing import PARTS, OperationSeconds, operation_seconds, summed_by

# How sharply the slower of a GPU and its host wins: their p-norm.
_HOST_NORM = 4.0
# An optimizer's step on the host: its memory's rate and the link to the device.
_HOST_BYTES_PER_S = 25e9
_HOST_LINK_BYTES_PER_S = 16e9
# Half widths of the 80% intervals in the logarithm. Calibrated on a CPU, with one thread and with several (waking them
# between short operations is not modeled): residuals of bench/cost/step_time_accuracy.py with the model's family left
# out. The others are wider by judgment: no traced module was measured on a GPU.
_ONE_THREAD, _SEVERAL_THREADS = 0.20, 0.40
_CALIBRATED_GPU, _FITTED_GPU, _SCALED_CPU = 0.35, 0.55, 0.55
# Each thing that lies outside what was measured widens the interval by this factor.
_EXTRAPOLATION_FACTOR = 1.25
_LARGEST_HALF_WIDTH = 1.4
# Below this share of the time, operations without a measurement of their own aren't worth a word.
_UNMEASURED_SHARE = 0.05
_KIND_OF = {"fp32": "fp32", "bf16-mixed": "bf16", "bf16": "bf16", "fp16-mixed": "fp16"}


@dataclass(frozen=True, kw_only=True)
class StepSetting:
    """How the traced step is run.

    Attributes:
        mode: ``"train"``, ``"infer"`` or ``"decode"``.
        precision: as in ``fb.estimate``.
        device: the GPU; None: the CPU.
        num_devices: data-parallel ranks.
        sharding: ``"none"``, ``"zero1"``, ``"zero2"`` or ``"zero3"``.
        offload: ``"none"`` or ``"optimizer"``.
        grad_accumulation: micro-batches of a step.
    """

    mode: str
    precision: str
    device: Device | None
    num_devices: int = 1
    sharding: str = "none"
    offload: str = "none"
    grad_accumulation: int = 1


@dataclass(frozen=True, kw_only=True)
class ModuleStepTime:
    """The time of one step of a traced module.

    Attributes:
        seconds: of an optimizer step (train), a forward pass (infer) or a token (decode); 80%.
        parts: seconds of the mid by cause: forward, backward, recompute, optimizer, page_faults (memory fresh from
            the operating system, on a CPU), communication; they sum to it.
        by_operation: seconds of forward, backward, recompute and optimizer by operation, the most first.
        by_module: the same by module; ``""`` is the model itself, and the optimizer.
        mfu: model FLOPs' share of the device's dense peak for the precision, of a CPU of its fastest measured matrix
            product; None where that is not known.
        hfu: the same with recomputed FLOPs.
        extrapolating: what lies outside the measured, each in words.
    """

    seconds: Interval
    parts: dict[str, float]
    by_operation: dict[str, float]
    by_module: dict[str, float]
    mfu: Interval | None
    hfu: Interval | None
    extrapolating: tuple[str, ...]


def module_step_time(trace: Trace, setting: StepSetting, calibration: Calibration | None = None) -> ModuleStepTime:
    """Time the steady step of a trace.

    Every operation takes the longer of its arithmetic and its memory traffic at the rates that its size achieves; on
    a CPU the calls add to that, on a GPU the slower of host and device counts. Without a calibration, a CPU's times are
    a reference CPU's, scaled by a measurement of a fraction of a second, once per process and thread count.

    Args:
        trace: with the kernels of the setting's device.
        setting: how it is run.
        calibration: of the machine that will run it.
    """
    on_cpu, training = setting.device is None, setting.mode == "train"
    given, notes = calibration is not None, []
    if on_cpu and (calibration is None or calibration.operations is None):
        notes.append("not calibrated: a reference CPU's times are scaled to this one's; use `fastbudget calibrate`")
        calibration, given = guessed_calibration(torch.get_num_threads()), False
    rates = _rates(setting, calibration, training)
    step = 0 if setting.mode == "infer" else 1
    timed = operation_seconds(trace.operations, rates.seconds, step=step)
    rows, parts = _with_host(timed, rates, on_cpu=on_cpu)
    ranks = setting.num_devices
    if training and setting.offload == "optimizer":
        parts["optimizer"] = _host_optimizer_seconds(trace, setting)
        notes.append("offload: the optimizer's step on the host is a guess")
    elif training and setting.sharding != "none":
        parts["optimizer"] /= ranks
    if on_cpu and calibration is not None and calibration.operations is not None:
        parts["page_faults"] = calibration.operations.fresh_byte_s * fresh_bytes(trace.log, mode=setting.mode)
    if training and ranks > 1:
        parts["communication"] = exposed_seconds(
            _load(trace, setting),
            links_between(setting.device, ranks, calibration),
            forward_s=parts["forward"],
            backward_s=parts["backward"] + parts["recompute"],
        )
        notes += _communication_notes(setting, calibration if given else None)
    notes += _rate_notes(setting, rates, timed, calibration, given=given)
    seconds = _interval(sum(parts.values()), setting, calibration, len(notes), given=given)
    model_flops, all_flops = _flops(trace, setting, step)
    peak = _peak(setting, rates, calibration)
    return ModuleStepTime(
        seconds=seconds,
        parts={name: value for name, value in parts.items() if value},
        by_operation=summed_by(timed.name, rows),
        by_module=summed_by(timed.module, rows),
        mfu=_utilization(model_flops, peak, seconds),
        hfu=_utilization(all_flops, peak, seconds),
        extrapolating=tuple(notes),
    )


def _rates(setting: StepSetting, calibration: Calibration | None, training: bool) -> OperationRates:
    if calibration is not None and calibration.operations is not None:
        return MeasuredRates(calibration.operations, training=training)
    assert setting.device is not None, "a CPU is always measured"
    return FittedRates(setting.device, calibration)


def _with_host(timed: OperationSeconds, rates: OperationRates, *, on_cpu: bool) -> tuple[np.ndarray, dict[str, float]]:
    """Return the seconds of each operation and of each part, the host's calls included."""
    rows = np.zeros(len(timed.device_s))
    parts = {}
    for part in PARTS:
        chosen = timed.rows_of(part)
        each = rates.host_seconds(part)
        device, host = float(timed.device_s[chosen].sum()), each * int(chosen.sum())
        rows[chosen] = timed.device_s[chosen] + each
        parts[part] = device + host
        if not on_cpu and host:
            # Operations are queued: the device computes while the host calls the next.
            parts[part] = (device**_HOST_NORM + host**_HOST_NORM) ** (1.0 / _HOST_NORM)
            rows[chosen] *= parts[part] / (device + host)
    return rows, parts


def _host_optimizer_seconds(trace: Trace, setting: StepSetting) -> float:
    """Its memory traffic at the host's rate, gradients down and weights up in 16 bits."""
    moved = trace.operations.moved_bytes_in("optimizer", step=1)
    ranks = 1 if setting.sharding == "none" else setting.num_devices
    crossing = 4.0 * trace.num_trainable_params
    return (moved / _HOST_BYTES_PER_S + crossing / _HOST_LINK_BYTES_PER_S) / ranks


def _load(trace: Trace, setting: StepSetting) -> DataParallelLoad:
    half = setting.precision != "fp32"
    # DDP reduces gradients in the parameters' type, FSDP2 in that of the computation.
    gradient = 4.0 if not half or (setting.precision.endswith("mixed") and setting.sharding == "none") else 2.0
    return DataParallelLoad(
        num_devices=setting.num_devices,
        sharding=setting.sharding,
        gradient_bytes=gradient * trace.num_trainable_params,
        weight_bytes=(2.0 if half else 4.0) * trace.num_params,
        micro_batches=setting.grad_accumulation,
    )


def _communication_notes(setting: StepSetting, calibration: Calibration | None) -> list[str]:
    if setting.device is None and (calibration is None or calibration.all_reduce_bytes_per_s is None):
        return ["num_devices: 10 Gbit/s Ethernet is assumed between the processes"]
    return []


def _rate_notes(
    setting: StepSetting,
    rates: OperationRates,
    timed: OperationSeconds,
    calibration: Calibration | None,
    *,
    given: bool,
) -> list[str]:
    notes = []
    if isinstance(rates, FittedRates):
        notes.append(f"not calibrated: rates of {rates.name} come from published training of transformers")
        notes += [
            f"device figures: {rates.name} is taken to have {words}" for words in rates.assumed(setting.precision)
        ]
    if isinstance(rates, MeasuredRates):
        kinds = {kind: rates.measures(*kind) for kind in set(zip(timed.name, timed.dtype, strict=True))}
        unmeasured = np.array([not kinds[kind] for kind in zip(timed.name, timed.dtype, strict=True)], dtype=bool)
        total = float(timed.device_s.sum())
        share = float(timed.device_s[unmeasured].sum()) / total if total else 0.0
        if share > _UNMEASURED_SHARE:
            by_name = summed_by(timed.name, np.where(unmeasured, timed.device_s, 0.0))
            names = ", ".join(list(by_name)[:3])
            notes.append(f"operations: {share:.0%} of the time is guessed from others like them ({names})")
    if given and calibration is not None and setting.device is None:
        threads = torch.get_num_threads()
        if calibration.threads not in (None, threads):
            notes.append(f"threads: calibrated with {calibration.threads}, torch uses {threads} here")
    return notes


def _interval(
    mid: float, setting: StepSetting, calibration: Calibration | None, extrapolated: int, *, given: bool
) -> Interval:
    if setting.device is None:
        alone = calibration is not None and calibration.threads == 1
        half = _SCALED_CPU if not given else _ONE_THREAD if alone else _SEVERAL_THREADS
    else:
        half = _CALIBRATED_GPU if given else _FITTED_GPU
    noise = 1.28 * (calibration.spread if calibration is not None else 0.0)
    half = math.hypot(half, noise) * _EXTRAPOLATION_FACTOR ** max(extrapolated - (not given), 0)
    factor = math.exp(min(half, _LARGEST_HALF_WIDTH))
    return Interval(mid / factor, mid, mid * factor)


def _flops(trace: Trace, setting: StepSetting, step: int) -> tuple[int, int]:
    """Return the FLOPs of the step without and with what is computed again."""
    table = trace.operations
    phases = ("evaluate",) if setting.mode != "train" else ("forward", "loss", "backward", "optimizer")
    every = table.flops_in(*phases, step=step)
    again = int(table.flops[table.recomputed & (table.step == step)].sum())
    return every - again, every


def _peak(setting: StepSetting, rates: OperationRates, calibration: Calibration | None) -> float | None:
    kind = _KIND_OF[setting.precision]
    if setting.device is not None:
        return FittedRates(setting.device, None).of(kind).peak_flops_per_s
    times = None if calibration is None else calibration.operations
    if times is None:
        return None
    return times.fastest_product({"bf16": "bfloat16", "fp16": "float16"}.get(kind, "float32"))


def _utilization(flops: int, peak: float | None, seconds: Interval) -> Interval | None:
    if not peak or not seconds.low:
        return None
    return Interval(*(flops / peak / value for value in (seconds.high, seconds.mid, seconds.low)))
