"""How often to save: the interval that loses least between writing checkpoints and repeating lost work."""

from __future__ import annotations

import math

from .errors import InvalidInputError


def checkpoint_interval(stall_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between two checkpoints that waste least: ``sqrt(2 * stall_s * mtbf_s)``.

    Per second of work, saves cost ``stall_s / interval`` and an interruption repeats half an interval on average,
    ``interval / (2 * mtbf_s)``; their sum is least here. First order: good while the stall is small beside
    ``mtbf_s``. The interval never exceeds ``mtbf_s``, which is what Daly's exact model gives for long stalls.

    Args:
        stall_s: Seconds that training stands still for one checkpoint, >= 0. For an asynchronous save this is the copy.
        mtbf_s: Expected seconds between interruptions (failures, preemptions), > 0 and finite. For a job on several
            machines it is that of one machine divided by their number.

    Raises:
        InvalidInputError: a value out of range.

    Source:
        J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974;
        J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
    """
    if not 0 <= stall_s < math.inf:
        raise InvalidInputError(f"stall_s must be a finite number of seconds, at least 0; got {stall_s}.")
    if not 0 < mtbf_s < math.inf:
        raise InvalidInputError(f"mtbf_s must be a finite number of seconds above 0; got {mtbf_s}.")
    return min(math.sqrt(2 * stall_s * mtbf_s), mtbf_s)
