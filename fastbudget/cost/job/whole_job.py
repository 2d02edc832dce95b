"""``fb.job_cost``: what a training job costs on given hardware, from start to last checkpoint."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike

from ...core.errors import InvalidInputError
from ...hardware.devices import Device, find_device
from ..runtime.calibration import Calibration, read_calibration
from ..runtime.step_time import estimate_step_time
from .job_accounting import JobCost, account_job
from .job_conditions import JobConditions
from .training_job import TrainingJob


def job_cost(
    job: TrainingJob,
    *,
    hardware: str | Device,
    num_devices: int = 1,
    micro_batch_size: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    virtual_pipeline: int = 1,
    context_parallel: int = 1,
    expert_parallel: int = 1,
    sharding: str = "none",
    recompute: str = "none",
    offload: str = "none",
    framework: str = "pytorch",
    software: str | None = None,
    calibration: Calibration | str | PathLike[str] | None = None,
    price: float | str | PathLike[str] | None = None,
    spot: bool | None = None,
    conditions: JobConditions | None = None,
) -> JobCost:
    """Estimate what a whole job takes and costs: hours, device-hours, kWh, CO2e and USD, line by line.

    Memory is not looked at: :func:`estimate_transformer` says whether the layout fits.

    Args:
        job: what is trained, on how much data, with its evaluations, checkpoints and buffer.
        hardware: the accelerator's name (``"h100-sxm"``, ``"a100-80gb"``).
        num_devices: all devices; what the other sizes leave is data parallelism.
        micro_batch_size: see :class:`TrainingLayout`, as for all up to ``framework``.
        tensor_parallel: see there.
        pipeline_parallel: see there.
        virtual_pipeline: see there.
        context_parallel: see there.
        expert_parallel: see there.
        sharding: see there.
        recompute: see there.
        offload: see there.
        framework: see there.
        software: what trains, free-form; see :func:`estimate_transformer`.
        calibration: a measured machine, or its file; see :func:`estimate_transformer`.
        price: instead of ``conditions.price``: USD of one device for an hour, a provider's name, or a file of prices.
        spot: instead of ``conditions.spot``: on spot devices.
        conditions: prices, failures, power and electricity; None: the stated defaults.

    Raises:
        InvalidInputError: a name is unknown, sizes don't divide, or spot nodes are interrupted faster than the job
            restarts.
    """
    if not isinstance(job, TrainingJob):
        raise InvalidInputError(f"job must be a TrainingJob, got {type(job).__name__}.")
    conditions = conditions or JobConditions()
    if price is not None:
        conditions = replace(conditions, price=price)
    if spot is not None:
        conditions = replace(conditions, spot=spot)
    device = find_device(hardware)
    layout = job.layout(
        num_devices=num_devices,
        micro_batch_size=micro_batch_size,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        virtual_pipeline=virtual_pipeline,
        context_parallel=context_parallel,
        expert_parallel=expert_parallel,
        sharding=sharding,
        recompute=recompute,
        offload=offload,
        framework=framework,
    )
    layout.check(job.shape)
    step = estimate_step_time(job.shape, layout, device, software=software, calibration=read_calibration(calibration))
    return account_job(
        job,
        step_time_s=step.seconds,
        mfu=step.mfu.mid,
        layout=layout,
        device=device,
        conditions=conditions,
        extrapolating=step.extrapolating,
    )
