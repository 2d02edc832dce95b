"""Device-hours of a whole run from the time of its steps."""

from __future__ import annotations

from ...core.interval import Interval
from ..transformer.training_layout import TrainingLayout
from .runtime_constants import RuntimeConstants, default_constants


def device_hours(
    step_s: Interval, steps: float, layout: TrainingLayout, constants: RuntimeConstants | None = None
) -> Interval:
    """Return the device-hours of a run, with the share that published runs spend on other things than steps.

    Restarts, evaluations, checkpoints and slow phases are in the device-hours that people publish, and not in the
    time of a step. Their share, ``whole_run`` of the constants, is fitted on runs that publish device-hours.

    Args:
        step_s: seconds of a step.
        steps: how many.
        layout: how it is trained.
        constants: None: those that ship with the package.
    """
    share = (constants or default_constants()).whole_run if layout.mode == "train" else 0.0
    return step_s.scaled(steps * (1.0 + share) * layout.num_devices / 3600.0)
