"""What a whole job costs: every line from start to last checkpoint, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from ...core.errors import InvalidInputError
from ...core.interval import Interval
from ...core.units import SECONDS_PER_HOUR
from ...hardware.devices import Device
from ...hardware.prices import Price, price_for
from ..transformer.training_layout import TrainingLayout
from .checkpoint_size import checkpoint_bytes
from .energy import energy_kwh, grid_kg_per_kwh
from .interruptions import CHECKPOINT_BYTES_PER_S, count_interruptions
from .interval_sums import exactly, independent_sum
from .job_assumptions import assumptions_of
from .job_conditions import JobConditions
from .training_job import TrainingJob

LINES = (
    "start_up",
    "warm_up",
    "steps",
    "evaluation",
    "checkpoints",
    "restarts",
    "spot_interruptions",
    "buffer",
)
# These take as long as the step time says, so their errors are one error.
_SCALED_BY_STEPS = ("steps", "evaluation")

# Containers, data and communicators: 61 s for 96 ranks to 27 min for 3,072 in one set of logs of DeepSpeed
# (github.com/samanta-amit/Megatron-DeepSpeed ALCF/notes/deepspeed_init_time.md). Five minutes is an assumption.
START_UP_S = Interval(60.0, 300.0, 1200.0)
# Slow first steps; with torch.compile its compilation. Assumptions.
WARM_UP_S = Interval(5.0, 20.0, 60.0)
COMPILED_WARM_UP_S = Interval(30.0, 120.0, 600.0)


@dataclass(frozen=True, kw_only=True)
class JobCost:
    """What a job costs. Intervals hold 80%.

    Attributes:
        lines: wall seconds of each of ``LINES``.
        wall_hours: all lines together: steps and evaluations err together, the others each by itself (see
            ``interval_sums``), and the buffer is a share of that.
        gpu_hours: wall hours times ``billed_devices``.
        kwh: electricity of devices, hosts and data center; None where the device's power is not known.
        co2e_kg: its emissions; None without kWh.
        usd: what is paid as asked for, on demand or spot; None where no price is known.
        usd_on_demand: the same on demand.
        usd_spot: the same on spot devices, time lost by interruptions included; None also where interruptions
            come faster than the job can restart.
        num_steps: optimizer steps.
        effective_tokens: useful tokens.
        processed_tokens: positions that are computed.
        step_time_s: of one step.
        num_devices: devices that work.
        billed_devices: devices that are paid for.
        checkpoint_interval_s: seconds of work between checkpoints.
        price: per device and hour on demand; None: not known.
        spot_price: the same on spot.
        extrapolating: what lies outside the calibrated range.
        assumptions: what was assumed, in words, with sources.
    """

    lines: dict[str, Interval]
    wall_hours: Interval
    gpu_hours: Interval
    kwh: Interval | None
    co2e_kg: Interval | None
    usd: Interval | None
    usd_on_demand: Interval | None
    usd_spot: Interval | None
    num_steps: int
    effective_tokens: float
    processed_tokens: float
    step_time_s: Interval
    num_devices: int
    billed_devices: int
    checkpoint_interval_s: float
    price: Price | None
    spot_price: Price | None
    extrapolating: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields; intervals as ``{"low", "mid", "high"}``, lines in seconds."""
        values = {name: _plain(value) for name, value in vars(self).items() if name != "lines"}
        return {"lines_s": {name: line.to_json() for name, line in self.lines.items()}} | values


def _plain(value: Any) -> Any:
    if isinstance(value, Interval | Price):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value


def account_job(
    job: TrainingJob,
    *,
    step_time_s: Interval,
    mfu: float,
    layout: TrainingLayout,
    device: Device,
    conditions: JobConditions,
    extrapolating: tuple[str, ...] = (),
) -> JobCost:
    """Add up what a job costs when a step takes so long.

    Args:
        job: what is trained.
        step_time_s: seconds of one step of ``layout``.
        mfu: model FLOPs utilization of a step, which says how much power it draws.
        layout: how the job is trained.
        device: what it runs on.
        conditions: prices, failures and power.
        extrapolating: passed on.

    Raises:
        InvalidInputError: devices fail, or spot devices are taken away, faster than the job saves and restarts.
    """
    stall_s = _checkpoint_s(job, layout, conditions)
    on_demand = _timed(job, step_time_s, layout, conditions, stall_s, spot=False)
    if on_demand is None:
        raise InvalidInputError(
            f"The job hardly gets anywhere: {layout.num_devices} devices fail more often than it saves and restarts. "
            "Save more often (checkpoint_every_steps), or give the device_hours_between_failures that you see."
        )
    price = price_for(device, conditions.price)
    spot_price = _spot_price(device, conditions)
    on_spot = None
    if spot_price or conditions.spot:
        on_spot = _timed(job, step_time_s, layout, conditions, stall_s, spot=True)
    if conditions.spot and on_spot is None:
        nodes = math.ceil(layout.num_devices / conditions.devices_per_node)
        raise InvalidInputError(
            f"spot: {nodes} spot nodes are interrupted faster than the job can restart and save. Use fewer nodes, "
            "devices on demand, or give the spot_hours_between_interruptions that you see."
        )
    chosen = on_spot if conditions.spot and on_spot else on_demand
    billed = layout.num_devices
    if conditions.whole_nodes:
        billed = math.ceil(billed / conditions.devices_per_node) * conditions.devices_per_node
    usd_on_demand = None if price is None else on_demand.hours.scaled(billed * price.usd_per_device_hour)
    usd_spot = None
    if spot_price is not None and on_spot is not None:
        usd_spot = on_spot.hours.scaled(billed * spot_price.usd_per_device_hour)
    kwh = energy_kwh(device, chosen.hours.scaled(layout.num_devices), mfu, conditions)
    kg_per_kwh = grid_kg_per_kwh(conditions)
    return JobCost(
        lines=chosen.lines,
        wall_hours=chosen.hours,
        gpu_hours=chosen.hours.scaled(billed),
        kwh=kwh,
        co2e_kg=None if kwh is None else kwh.scaled(kg_per_kwh),
        usd=usd_spot if conditions.spot else usd_on_demand,
        usd_on_demand=usd_on_demand,
        usd_spot=usd_spot,
        num_steps=job.num_steps,
        effective_tokens=job.effective_tokens,
        processed_tokens=job.processed_tokens,
        step_time_s=step_time_s,
        num_devices=layout.num_devices,
        billed_devices=billed,
        checkpoint_interval_s=chosen.checkpoint_interval_s,
        price=price,
        spot_price=spot_price,
        extrapolating=extrapolating,
        assumptions=assumptions_of(job, conditions, device, price=price, spot_price=spot_price),
    )


@dataclass(frozen=True)
class _Timed:
    lines: dict[str, Interval]
    hours: Interval
    checkpoint_interval_s: float


def _timed(
    job: TrainingJob,
    step_time_s: Interval,
    layout: TrainingLayout,
    conditions: JobConditions,
    stall_s: Interval,
    *,
    spot: bool,
) -> _Timed | None:
    """Return the lines and their sum, or None where interruptions come too fast."""
    warm_up = COMPILED_WARM_UP_S if job.compiled else WARM_UP_S
    lines = {
        "start_up": START_UP_S if conditions.startup_s is None else exactly(conditions.startup_s),
        "warm_up": warm_up if conditions.warmup_s is None else exactly(conditions.warmup_s),
        "steps": step_time_s.scaled(job.num_steps),
        "evaluation": _evaluation(job, step_time_s, layout),
    }
    interval_s = None
    if job.checkpoint_every_steps is not None:
        interval_s = min(job.checkpoint_every_steps, job.num_steps) * step_time_s.mid
    counted = count_interruptions(
        lines["steps"].mid + lines["evaluation"].mid,
        stall_s=stall_s,
        num_devices=layout.num_devices,
        conditions=conditions,
        spot=spot,
        interval_s=interval_s,
    )
    if counted is None:
        return None
    lines |= {
        "checkpoints": counted.checkpoints,
        "restarts": counted.failures,
        "spot_interruptions": counted.spot,
    }
    subtotal = _total(lines)
    lines["buffer"] = subtotal.scaled(job.buffer)
    hours = subtotal.scaled((1 + job.buffer) / SECONDS_PER_HOUR)
    return _Timed(lines, hours, counted.checkpoint_interval_s)


def _total(lines: Mapping[str, Interval]) -> Interval:
    together = reduce(add, (lines[name] for name in _SCALED_BY_STEPS))
    return independent_sum(together, *(line for name, line in lines.items() if name not in _SCALED_BY_STEPS))


def _evaluation(job: TrainingJob, step_time_s: Interval, layout: TrainingLayout) -> Interval:
    if not job.num_evaluations:
        return exactly(0.0)
    if job.evaluation_s is not None:
        return exactly(job.evaluation_s * job.num_evaluations)
    assert job.evaluation_tokens is not None
    steps = job.evaluation_tokens / (job.global_batch_size * job.seq_len)
    passes = (3.0 if layout.trains_all else 2.0) + (layout.recompute == "full")  # as in step_flops
    return step_time_s.scaled(steps / passes * job.num_evaluations)


def _checkpoint_s(job: TrainingJob, layout: TrainingLayout, conditions: JobConditions) -> Interval:
    if job.checkpoint_s is not None:
        return exactly(job.checkpoint_s)
    size = checkpoint_bytes(job.shape, layout)
    nodes = math.ceil(layout.num_devices / conditions.devices_per_node)
    rate = CHECKPOINT_BYTES_PER_S
    return Interval(*(size / (nodes * end) for end in (rate.high, rate.mid, rate.low)))


def _spot_price(device: Device, conditions: JobConditions) -> Price | None:
    if conditions.spot_price is not None:
        return price_for(device, conditions.spot_price, spot=True)
    if isinstance(conditions.price, int | float):
        # A price of the user's own is what the devices cost that are asked for.
        return price_for(device, conditions.price, spot=True) if conditions.spot else None
    return price_for(device, conditions.price, spot=True)
