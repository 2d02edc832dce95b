"""The search behind a plan: every device, number of devices and precision, and what is rejected why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from ...core.errors import InvalidInputError
from ...hardware.devices import Device, known_devices
from ..job.job_accounting import account_job
from ..job.job_conditions import JobConditions
from ..job.training_job import TrainingJob
from ..runtime.calibration import Calibration
from ..runtime.links import links_of
from ..runtime.rates import Rates, achievable_rates
from ..runtime.step_time import estimate_step_time
from ..transformer.training_layout import TrainingLayout
from ..transformer.transformer_memory import TransformerMemory
from .candidates import Candidate, memory_words
from .explanations import next_constraint, why_best
from .layout_search import FastestLayouts, MemoryVerdicts, fastest_layouts
from .limits import Limits, most_exceeded, reason_of
from .nearest_miss import nearest_miss
from .planned import Plan, ranked
from .search_space import SearchSpace, combinations, layouts, why_nothing_runs

# A plan that takes longer than a year was hardly meant.
_LONG_HOURS = 24.0 * 365


@dataclass(frozen=True, kw_only=True)
class SearchedDevice:
    """An accelerator to search.

    Attributes:
        device: the accelerator.
        space: the values to combine on it, complete.
        conditions: its price and the job's conditions.
        calibration: if it was measured.
    """

    device: Device
    space: SearchSpace
    conditions: JobConditions
    calibration: Calibration | None = None


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What was found on one number of devices of one kind, in one precision.

    Attributes:
        on: the accelerator.
        count: devices.
        precision: of the layouts.
        found: the fastest layouts.
        accepted: candidates within the limits.
        over: candidates beyond, each with the limits and the multiples of them that it needs.
    """

    on: SearchedDevice
    count: int
    precision: str
    found: FastestLayouts
    accepted: tuple[Candidate, ...]
    over: tuple[tuple[Candidate, dict[str, float]], ...]


@dataclass(frozen=True, kw_only=True)
class PlanSearch:
    """A job, what it may run on, and what it may spend.

    Attributes:
        job: what is trained.
        devices: what it may run on.
        limits: what it may spend.
        framework: see :class:`TrainingLayout`.
        software: what trains, free-form.
        may_grow: more devices than asked for may be tried to tell what would fit.
    """

    job: TrainingJob
    devices: tuple[SearchedDevice, ...]
    limits: Limits
    framework: str
    software: str | None
    may_grow: bool

    def run(self, objective: str) -> Plan:
        """Search, rank and explain.

        Raises:
            InvalidInputError: nothing can run at all, or a budget in USD meets hardware without a price.
        """
        searched: list[Searched] = []
        rejected: Counter[str] = Counter()
        refused: dict[tuple[str, ...], InvalidInputError] = {}
        for on, precision, count in self._groups():
            reason = "precision"  # the device may lack it
            try:
                self._rates(on, precision)
                reason = "interruptions"  # so many devices may fail faster than the job restarts
                searched.append(self.on_count(on, count, precision))
            except InvalidInputError as error:
                refused.setdefault((reason, on.device.key, precision), error)
                rejected[reason] += combinations(on.space)
        if refused and not searched:
            raise next(iter(refused.values()))
        for one in searched:
            rejected.update(_rejected(one))
        num_layouts = sum(one.found.count for one in searched)
        if not num_layouts:
            raise InvalidInputError(why_nothing_runs(self.job, self.devices[0].space, self.devices[0].device))
        accepted = [candidate for one in searched for candidate in one.accepted]
        over = [candidate for one in searched for candidate, _ in one.over]
        axis, notes = self._cost_axis([*accepted, *over])
        candidates = ranked(accepted, axis, objective)
        result = Plan(
            candidates=candidates,
            objective=objective,
            cost_axis=axis,
            limits=self.limits,
            rejected=dict(rejected),
            num_layouts=num_layouts,
            notes=(*notes, *map(str, refused.values())),
        )
        if not candidates:
            return replace(result, nearest_miss=nearest_miss(self, searched))
        return replace(
            result,
            why_best=why_best(result, searched),
            next_constraint=next_constraint(result, searched),
            notes=(*result.notes, *self._missing_deadline(candidates[0])),
        )

    def on_count(self, on: SearchedDevice, count: int, precision: str) -> Searched:
        """Search one number of devices in one precision.

        Raises:
            InvalidInputError: the device has no rates for the precision, or can't finish on spot.
        """
        rates = self._rates(on, precision)
        found = fastest_layouts(
            self.job.shape,
            layouts(on.space, self.job, on.device, count, precision, self.framework),
            self._verdicts[on.device.key],
            on.device.memory_bytes,
            rates,
            links_of(on.device, rates.constants, on.calibration),
        )
        accepted, over = [], []
        for layout in (found.risky, found.fitting):
            if layout is None:
                continue
            candidate = self._candidate(on, layout)
            exceeded = self.limits.exceeded(candidate.cost)
            if exceeded:
                over.append((candidate, exceeded))
            else:
                accepted.append(candidate)
        return Searched(
            on=on, count=count, precision=precision, found=found, accepted=tuple(accepted), over=tuple(over)
        )

    def memory_of(self, on: SearchedDevice, layout: TrainingLayout) -> TransformerMemory:
        """Return a layout's memory on a device, estimated in full."""
        return self._verdicts[on.device.key].estimate(layout)

    def _groups(self) -> Iterator[tuple[SearchedDevice, str, int]]:
        for on in self.devices:
            assert on.space.precisions and on.space.device_counts
            for precision, count in product(on.space.precisions, on.space.device_counts):
                yield on, precision, count

    def _candidate(self, on: SearchedDevice, layout: TrainingLayout) -> Candidate:
        shape, device = self.job.shape, on.device
        step = estimate_step_time(shape, layout, device, software=self.software, calibration=on.calibration)
        cost = account_job(
            self.job,
            step_time_s=step.seconds,
            mfu=step.mfu.mid,
            layout=layout,
            device=device,
            conditions=on.conditions,
            extrapolating=step.extrapolating,
        )
        memory = self.memory_of(on, layout)
        risks = self.limits.risks(cost)
        if memory.fits != "yes":
            risks = (f"memory: {memory_words(memory)}, less than {memory.margin:.0%} to spare", *risks)
        return Candidate(device=device, layout=layout, step_time=step, cost=cost, memory=memory, risks=risks)

    def _rates(self, on: SearchedDevice, precision: str) -> Rates:
        kind = precision.removesuffix("-mixed")
        if not _computes(on.device, kind):
            instead = "fp16-mixed" if kind == "bf16" else "bf16-mixed"
            raise InvalidInputError(
                f"{on.device.name} has no {kind} units: train in {instead!r} instead of {precision!r} "
                "(TrainingJob's precision, or precisions=), or choose other hardware."
            )
        return achievable_rates(on.device, precision, software=self.software, calibration=on.calibration)

    @cached_property
    def _verdicts(self) -> dict[str, MemoryVerdicts]:
        return {on.device.key: MemoryVerdicts(self.job.shape, on.device) for on in self.devices}

    def _missing_deadline(self, best: Candidate) -> tuple[str, ...]:
        hours = best.wall_hours.mid
        if hours <= _LONG_HOURS or {"wall_hours", "deadline_hours"} & set(self.limits.given):
            return ()
        return (
            f"Without a deadline the cheapest takes {hours:,.0f} hours: give deadline_hours, or choose on the front.",
        )

    def _cost_axis(self, candidates: list[Candidate]) -> tuple[str, tuple[str, ...]]:
        unpriced = sorted({one.device.key for one in candidates if one.cost_usd is None})
        if not unpriced:
            return "usd", ()
        names = ", ".join(unpriced)
        if any(one.cost_usd is not None for one in candidates):
            return "usd", (f"No price is known for {names}: it comes last by cost. Give price= to compare it.",)
        if self.limits.usd is not None:
            raise InvalidInputError(
                f"A budget in usd needs the price of {names}, which isn't known: give price=, USD of one device for an "
                "hour, or limit gpu_hours."
            )
        return "gpu_hours", (f"No price is known for {names}: cost is counted in device-hours.",)


def _rejected(one: Searched) -> dict[str, int]:
    """Return the layouts left out, by reason."""
    counts = {"divisibility": combinations(one.on.space) - one.found.count, "memory": one.found.too_large}
    left = one.found.count - one.found.too_large
    if one.accepted:
        counts["slower"] = left - len(one.accepted)
    elif one.over:
        # Everything else there is slower, and so exceeds the same limit by more.
        counts[reason_of(*most_exceeded(one.over[-1][1]))] = left
    return {reason: count for reason, count in counts.items() if count}


def _computes(device: Device, kind: str) -> bool:
    """Whether a device, or another of its architecture where its own figure is not known, has units for a type.

    Estimates go on with a wider type's rate; nobody would plan with that.
    """
    alike = [one for one in known_devices() if one.architecture is not None and one.architecture == device.architecture]
    return kind == "fp32" or any(getattr(one, f"{kind}_flops_per_s") is not None for one in (device, *alike))
