"""What a whole job costs: every line from start to last checkpoint, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.interval import Interval
from ...hardware.prices import Price

LINES = (
    "start-up",
    "warm-up",
    "steps",
    "evaluation",
    "checkpoints",
    "restarts",
    "spot interruptions",
    "buffer",
)


@dataclass(frozen=True, kw_only=True)
class JobCost:
    """What a job costs. Intervals hold 80%.

    Attributes:
        lines: wall seconds of each of ``LINES``.
        wall_hours: all lines together, see :func:`total_of`.
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
        checkpoint_interval_s: wall seconds between checkpoints.
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
