"""What would have to give way where nothing fits: more money, hours, memory or devices, with the number."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING

from ...core.errors import InvalidInputError
from .candidates import Candidate
from .limits import reason_of, shown
from .planned import NearestMiss

if TYPE_CHECKING:
    from .plan_search import PlanSearch, Searched

_GIB = 2**30
# More devices than asked for are tried up to so many times the most.
_GROWTH = (2, 4, 8, 16)


def nearest_miss(search: PlanSearch, searched: Sequence[Searched]) -> NearestMiss:
    """Return the candidate that misses the limits by least, or the least memory that is needed."""
    over = [pair for one in searched for pair in one.over]
    # More devices bring memory and time; they don't make a job cheaper.
    helps = not over or any({"deadline_hours", "wall_hours"} & set(exceeded) for _, exceeded in over)
    larger = _with_more_devices(search) if helps else None
    if over:
        candidate, exceeded = min(over, key=lambda pair: (pair[0].memory.fits != "yes", max(pair[1].values())))
        needs = {name: search.limits.given[name] * times for name, times in exceeded.items()}
        words = [_need(search, candidate, name, value) for name, value in needs.items()]
        needs = {name: value for name, value in needs.items() if isfinite(value)}
        text = f"Nearest: {candidate.summary} {' and '.join(words)}."
    else:
        candidate, needs, text = None, *_memory(search, searched)
    if larger is not None:
        needs["num_devices"] = larger.num_devices
        text += f" On more devices it fits: {larger.summary}, {larger.wall_hours.mid:,.0f} hours."
    return NearestMiss(text=text, needs=needs, candidate=candidate)


def _need(search: PlanSearch, candidate: Candidate, name: str, value: float) -> str:
    spent, limit = search.limits.spent(name, candidate.cost), shown(name, search.limits.given[name])
    if spent is None:
        return f"can't be held to {limit}, for its {reason_of(name, inf)} is not known"
    return f"needs {shown(name, value)} (up to {shown(name, spent.high)}) where {limit} are allowed"


def _memory(search: PlanSearch, searched: Sequence[Searched]) -> tuple[dict[str, float], str]:
    estimates = [
        (search.memory_of(one.on, one.found.leanest), one) for one in searched if one.found.leanest is not None
    ]
    least, one = min(estimates, key=lambda pair: pair[0].device_bytes / pair[0].capacity_bytes)
    assert one.found.leanest is not None
    text = (
        f"Nearest: {one.count:,} x {one.on.device.key} need at least {least.device_bytes / _GIB:.1f} GiB of memory "
        f"each, and have {least.capacity_bytes / _GIB:.1f} GiB."
    )
    return {"memory_bytes": float(least.device_bytes)}, text


def _with_more_devices(search: PlanSearch) -> Candidate | None:
    """Return the candidate with the fewest devices beyond those asked for that fits everything."""
    if not search.may_grow:
        return None
    for times in _GROWTH:
        for on in search.devices:
            assert on.space.device_counts and on.space.precisions
            try:
                found = search.on_count(on, times * max(on.space.device_counts), on.space.precisions[0])
            except InvalidInputError:
                continue
            if found.accepted:
                return found.accepted[-1]
    return None
