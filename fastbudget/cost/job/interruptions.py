"""How often a job is interrupted, how often to save, and what both cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core.interval import Interval
from ...core.young_daly import checkpoint_interval
from .interval_sums import exactly
from .job_conditions import JobConditions

_HOUR = 3600.0

# Device-hours per interruption by a fault. Llama 3 405B: 466 in 54 days on 16,384 GPUs (arXiv:2407.21783,
# section 3.3.4); 419 of them unexpected. OPT-175B: at least 35 manual and an estimated 70 automatic restarts in two
# months on 992 GPUs (arXiv:2205.01068, section 2.5).
DEVICE_HOURS_BETWEEN_FAILURES = Interval(992 * 61 * 24 / 105, 16384 * 54 * 24 / 466, 16384 * 54 * 24 / 419)

# Hours until a spot node is taken away: 33% and 10% of nodes an hour in the traces of Bamboo (arXiv:2204.12013), and
# the 24 hours after which Google's preemptible machines end (arXiv:1911.05160).
SPOT_HOURS_BETWEEN_INTERRUPTIONS = Interval(3.0, 10.0, 24.0)

# From an interruption to the next step. Median of 11 minutes over 73 retries on 504 B200 (a report on a 63-node
# cluster); Llama 3 405B kept over 90% effective time with an interruption every 2.8 hours, so 17 minutes at most.
RESTART_S = Interval(180.0, 660.0, 1020.0)

# Bytes per second and node that a checkpoint is written with. 2.3 TB in 40 s from 48 nodes for BLOOM-176B, five
# times slower file systems being common (github.com/stas00/ml-engineering, storage); peak of Llama 3's storage,
# 7 TB/s from 2,048 nodes (arXiv:2407.21783, section 3.3.1).
CHECKPOINT_BYTES_PER_S = Interval(2.3e12 / 40 / 48 / 5, 2.3e12 / 40 / 48, 7e12 / 2048)

# 90% of a normal distribution lie below this many standard deviations.
_Z80 = 1.2816
# Segment, save and restart over the time between interruptions: beyond this a job makes hardly any headway.
_HOPELESS = 2.0
_SHORTEST_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Interruptions:
    """What interruptions and saving against them cost.

    Attributes:
        checkpoint_interval_s: seconds of work between checkpoints.
        checkpoints: seconds spent on saving.
        failures: seconds lost to faults.
        spot: seconds lost because spot nodes were taken away.
    """

    checkpoint_interval_s: float
    checkpoints: Interval
    failures: Interval
    spot: Interval


def count_interruptions(
    work_s: float,
    *,
    stall_s: Interval,
    num_devices: int,
    conditions: JobConditions,
    spot: bool,
    interval_s: float | None = None,
) -> Interruptions | None:
    """Return what interruptions cost a job, or None when they come too fast for it to get anywhere.

    The expected wall time of work in segments of ``T`` with saves of ``C``, restarts of ``R`` and a mean time
    ``M`` between interruptions is ``M exp(R/M) (exp((T+C)/M) - 1) work/T`` (Daly 2006, equation 20). Their number
    varies like a Poisson variable. Faults strike devices, reclaims strike nodes, each independently of the others.

    Args:
        work_s: seconds of the job without saves and interruptions.
        stall_s: seconds that training waits for one checkpoint.
        num_devices: devices of the job.
        conditions: how often they fail.
        spot: the devices are spot devices.
        interval_s: seconds between checkpoints; None: the Young/Daly interval.
    """
    restart = RESTART_S if conditions.restart_s is None else exactly(conditions.restart_s)
    failures = _rate(DEVICE_HOURS_BETWEEN_FAILURES, conditions.device_hours_between_failures, num_devices)
    reclaims = exactly(0.0)
    if spot:
        nodes = math.ceil(num_devices / conditions.devices_per_node)
        reclaims = _rate(SPOT_HOURS_BETWEEN_INTERRUPTIONS, conditions.spot_hours_between_interruptions, nodes)
    ends = []
    for rate, other, stall, again, deviation in (
        (failures.low, reclaims.low, stall_s.low, restart.low, -_Z80),
        (failures.mid, reclaims.mid, stall_s.mid, restart.mid, 0.0),
        (failures.high, reclaims.high, stall_s.high, restart.high, _Z80),
    ):
        total = rate + other
        # Whoever sees that saving or failing costs more than expected will change the interval.
        segment_s = checkpoint_interval(stall, 1 / total) or _SHORTEST_S if interval_s is None else interval_s
        segment_s = min(segment_s, max(work_s, _SHORTEST_S))
        if (segment_s + stall + again) * total > _HOPELESS:
            if deviation <= 0:
                return None
            total = _HOPELESS / (segment_s + stall + again)
        lost = _lost_s(work_s, segment_s, stall, again, total)
        shares = (rate / (rate + other), other / (rate + other))
        counts = [_poisson(work_s * total * share, deviation) for share in shares]
        saving = stall * math.ceil(work_s / segment_s - 1e-9)
        ends.append((segment_s, saving, lost * shares[0] * counts[0], lost * shares[1] * counts[1]))
    segments, saved, failed, reclaimed = zip(*ends, strict=True)
    return Interruptions(
        checkpoint_interval_s=segments[1],
        checkpoints=Interval(*sorted(saved)),
        failures=Interval(*sorted(failed)),
        spot=Interval(*sorted(reclaimed)),
    )


def _rate(hours_between: Interval, given: float | None, units: int) -> Interval:
    """Interruptions per second of so many devices or nodes."""
    hours = hours_between if given is None else exactly(given)
    return Interval(*(units / (end * _HOUR) for end in (hours.high, hours.mid, hours.low)))


def _lost_s(work_s: float, interval_s: float, stall_s: float, restart_s: float, rate: float) -> float:
    """Expected seconds beyond work and saves."""
    if rate == 0:
        return 0.0
    segments = work_s / interval_s
    wall = math.exp(restart_s * rate) * math.expm1((interval_s + stall_s) * rate) / rate * segments
    return max(0.0, wall - work_s - segments * stall_s)


def _poisson(expected: float, deviation: float) -> float:
    """A count's distance from its expectation, as a factor of it."""
    return max(0.0, 1.0 + deviation / math.sqrt(expected)) if expected > 0 else 0.0
