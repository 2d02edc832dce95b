"""``fb.plan``: the cheapest or fastest way to train a job on given hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from ...core.budget import Budget
from ...core.errors import InvalidInputError, did_you_mean, one_of
from ...hardware.devices import Device, find_device
from ..job.job_conditions import JobConditions
from ..job.training_job import TrainingJob
from ..runtime.calibration import Calibration, read_calibration
from ..transformer.training_layout import FRAMEWORKS
from .limits import read_limits
from .plan_search import PlanSearch, SearchedDevice
from .planned import Plan
from .search_space import SearchSpace, default_counts, default_space

OBJECTIVES = ("cost", "time")
DEFAULT_MAX_DEVICES = 1024

PriceLike = float | str | PathLike[str] | None


def plan(
    job: TrainingJob,
    *,
    hardware: str | Device | Sequence[str | Device] | None = None,
    max_devices: int | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    deadline_hours: float | None = None,
    objective: str = "cost",
    device_counts: Sequence[int] | None = None,
    tensor_parallels: Sequence[int] | None = None,
    pipeline_parallels: Sequence[int] | None = None,
    virtual_pipelines: Sequence[int] | None = None,
    context_parallels: Sequence[int] | None = None,
    expert_parallels: Sequence[int] | None = None,
    shardings: Sequence[str] | None = None,
    micro_batch_sizes: Sequence[int] | None = None,
    recomputes: Sequence[str] | None = None,
    precisions: Sequence[str] | None = None,
    framework: str = "pytorch",
    software: str | None = None,
    calibration: Calibration | str | PathLike[str] | None = None,
    price: PriceLike | Mapping[str, PriceLike] = None,
    spot: bool | None = None,
    conditions: JobConditions | None = None,
) -> Plan:
    """Search devices and layouts for the cheapest or fastest way to train a job within memory, budget and deadline.

    All combinations of the given values are tried that can run at all (the rules: :func:`search_space.layouts`);
    what is not given takes the usual values (:func:`search_space.default_space`). The result is exact over them: the
    same as estimating each. A candidate fits (``"yes"``) when its memory does with the margin of
    :func:`estimate_transformer` to spare and the upper end of the 80% interval of the whole job, its buffer
    included, is within every limit. Where only the middle is, it is ``"at risk"``, and comes after all that fit.

    Args:
        job: What is trained, on how much data, with its evaluations, checkpoints and buffer.
        hardware: One or several accelerators (``["h100-sxm", "a100-80gb"]``); a plan uses one kind.
        max_devices: The most devices; None: 1,024.
        budget: What the whole job may spend: :class:`Budget`, or a mapping of ``usd``, ``gpu_hours``, ``wall_hours``
            and ``kwh``. Money is counted at ``price``, or at the budget's own ``usd_per_device_hour``; electricity is
            that of devices, hosts and data center (:attr:`JobCost.kwh`).
        deadline_hours: Hours on the clock until the job must be done.
        objective: ``"cost"``: least money (device-hours where a price is missing); ``"time"``: fewest hours.
        device_counts: Numbers of devices; None: 1, 2, 4, ... in a node, then 1, 2, 3, 4, 6, 8, 12, ... nodes.
        tensor_parallels: Sizes to try; None: 1 to 8 within a node.
        pipeline_parallels: Stages to try; None: 1 to 32.
        virtual_pipelines: Chunks per stage to try; None: 1, 2, 4.
        context_parallels: Sizes to try; None: 1, from 16,384 tokens on up to 8.
        expert_parallels: Sizes to try; None: 1 to 8 for mixtures of experts.
        shardings: None: all of ``"none"``, ``"zero1"``, ``"zero2"``, ``"zero3"``.
        micro_batch_sizes: None: 1, 2, 4, ..., 64.
        recomputes: None: all of ``"none"``, ``"selective"``, ``"full"``.
        precisions: None: the job's. Others change what is trained, so they are tried only when asked for.
        framework: Whose habits decide the memory: ``"pytorch"``, ``"deepspeed"``, ``"megatron"``.
        software: What trains, free-form; see :func:`estimate_transformer`.
        calibration: A measured machine, or its file; used for its device.
        price: USD of one device for an hour, a provider's name or a file of prices; or a mapping from hardware to
            one of these; None: the median of the price table.
        spot: Instead of ``conditions.spot``: on spot devices.
        conditions: Prices, failures, power and electricity; None: the stated defaults.

    Raises:
        InvalidInputError: a name is unknown, no hardware is given, a size makes no sense, no combination can run, or
            a budget in USD meets hardware without a price.
    """
    if not isinstance(job, TrainingJob):
        raise InvalidInputError(f"job must be a TrainingJob, got {type(job).__name__}.")
    _check_choice("objective", objective, OBJECTIVES)
    _check_choice("framework", framework, FRAMEWORKS)
    job.layout().check(job.shape)
    devices = _devices(hardware)
    space = SearchSpace(
        device_counts=_values(device_counts),
        tensor_parallels=_values(tensor_parallels),
        pipeline_parallels=_values(pipeline_parallels),
        virtual_pipelines=_values(virtual_pipelines),
        context_parallels=_values(context_parallels),
        expert_parallels=_values(expert_parallels),
        shardings=_values(shardings),
        micro_batch_sizes=_values(micro_batch_sizes),
        recomputes=_values(recomputes),
        precisions=_values(precisions),
    )
    limits, budget_price = read_limits(budget, deadline_hours)
    if budget_price is not None:
        if price is not None:
            raise InvalidInputError(
                f"The budget's usd_per_device_hour ({budget_price:g}) and price ({price!r}) say the same: give one."
            )
        price = budget_price
    conditions = conditions or JobConditions()
    if spot is not None:
        conditions = replace(conditions, spot=spot)
    measured = _for_devices(read_calibration(calibration), devices)
    most = _max_devices(max_devices, space)
    search = PlanSearch(
        job=job,
        devices=tuple(
            SearchedDevice(
                device=device,
                space=replace(
                    default_space(space, job, device, framework),
                    device_counts=_counts(space, device, most),
                ),
                conditions=_priced(conditions, price, device),
                calibration=measured if measured is not None and measured.device == device.key else None,
            )
            for device in devices
        ),
        limits=limits,
        framework=framework,
        software=software,
        may_grow=device_counts is None,
    )
    return search.run(objective)


def _devices(hardware: str | Device | Sequence[str | Device] | None) -> tuple[Device, ...]:
    names = [hardware] if isinstance(hardware, str | Device) else list(hardware or ())
    if not names:
        raise InvalidInputError(
            "hardware: name at least one accelerator, such as ['h100-sxm']; `fastbudget hardware` lists them."
        )
    return tuple({device.key: device for device in map(find_device, names)}.values())


def _max_devices(given: Any, space: SearchSpace) -> int:
    if given is None:
        return max(space.device_counts or (DEFAULT_MAX_DEVICES,))
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidInputError(f"max_devices must be an integer of at least 1, or None, got {given!r}.")
    return given


def _counts(space: SearchSpace, device: Device, most: int) -> tuple[int, ...]:
    if space.device_counts is None:
        return default_counts(device, most)
    counts = tuple(count for count in space.device_counts if count <= most)
    if not counts:
        raise InvalidInputError(f"device_counts {space.device_counts}: none is within max_devices ({most}).")
    return counts


def _values(given: Iterable[Any] | None) -> Any:
    return given if given is None or isinstance(given, str | int) else tuple(given)


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInputError(
            f"Unknown {name} {value!r}.{did_you_mean(str(value), allowed)} Known: {one_of(allowed)}."
        )


def _priced(conditions: JobConditions, price: PriceLike | Mapping[str, PriceLike], device: Device) -> JobConditions:
    if isinstance(price, Mapping):
        by_key = {find_device(name).key: value for name, value in price.items()}
        price = by_key.get(device.key)
    return conditions if price is None else replace(conditions, price=price)


def _for_devices(calibration: Calibration | None, devices: Sequence[Device]) -> Calibration | None:
    if calibration is not None and calibration.device not in [device.key for device in devices]:
        raise InvalidInputError(
            f"The calibration is of {calibration.device!r}, which is not among the hardware: "
            f"{one_of(device.key for device in devices)}."
        )
    return calibration
