"""Why the best candidate is best, and what keeps it from being better, in words with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from .candidates import Candidate, layout_words
from .limits import most_exceeded, reason_of, shown
from .planned import Plan, cost_of

if TYPE_CHECKING:
    from .plan_search import Searched

# Time of a step that isn't computing.
_COMMUNICATION = ("communication", "bubble", "stragglers")


def why_best(plan: Plan, searched: Sequence[Searched]) -> str:
    """Return what the best candidate beats and by how much."""
    best = plan.best
    assert best is not None
    what, value = _objective(plan, best)
    sentences = [f"{best.summary} is the {'cheapest' if plan.objective == 'cost' else 'fastest'} that fits: {value}."]
    if best.fits != "yes":
        sentences = [f"Nothing fits for sure. {best.summary} is the best at risk ({'; '.join(best.risks)}): {value}."]
    for other, relation in _rivals(plan, best):
        _, its = _objective(plan, other)
        difference = _value(plan, other) / _value(plan, best) - 1
        sentences.append(
            f"{relation}, {other.summary}, takes {difference:.1%} more {what}: {its}{_because(other, best)}."
        )
    beyond = _better_but_over(plan, best, searched)
    if beyond is not None:
        other, name, spent = beyond
        sentences.append(
            f"{other.summary} would take only {_objective(plan, other)[1]}, but {shown(name, spent)} exceed the "
            f"{reason_of(name)} of {shown(name, plan.limits.given[name])}."
        )
    risky = [one for one in plan.candidates if one.fits != best.fits and _value(plan, one) < _value(plan, best)]
    if risky:
        least = min(risky, key=lambda one: _value(plan, one))
        sentences.append(f"At risk: {least.summary}, {_objective(plan, least)[1]} ({'; '.join(least.risks)}).")
    return " ".join(sentences)


def next_constraint(plan: Plan, searched: Sequence[Searched]) -> str:
    """Return what binds next: the deadline, the budget, memory, the number of devices, or communication."""
    best = plan.best
    assert best is not None
    if best.risks:
        return best.risks[0]
    what = _objective(plan, best)[0]
    beyond = _better_but_over(plan, best, searched)
    if beyond is not None:
        other, name, spent = beyond
        saved = 1 - _value(plan, other) / _value(plan, best)
        return f"{reason_of(name)}: with {shown(name, spent)}, {other.summary} would take {saved:.1%} less {what}."
    own = next(one for one in searched if any(_is_same(same, best) for same in one.accepted))
    assert own.found.fastest is not None and own.on.space.device_counts is not None
    seconds, fastest = own.found.fastest
    gain = 1 - seconds / best.step_time.seconds.mid
    waiting = f"communication and bubbles take {_communication(best):.0%} of a step"
    if gain >= 0.01:
        capacity = best.memory.capacity_bytes / 2**30
        return f"memory: with more than {capacity:.0f} GiB, {layout_words(fastest)} would take {gain:.1%} less time."
    if plan.objective == "time" and best.num_devices == max(own.on.space.device_counts):
        return f"devices: all {best.num_devices:,} that are allowed are used; {waiting}."
    parts = best.step_time.parts
    longest = max(parts, key=lambda name: parts[name])
    share = parts[longest] / best.step_time.seconds.mid
    return f"{longest.replace('_', ' ')}: {share:.0%} of a step; {waiting}."


def _objective(plan: Plan, one: Candidate) -> tuple[str, str]:
    """Return what is minimized, in a word, and its value with the 80% interval."""
    in_usd = plan.cost_axis == "usd" and one.cost_usd is not None
    money = one.cost_usd if in_usd else one.gpu_hours
    assert money is not None
    unit = "USD" if in_usd else "device-hours"
    hours = one.wall_hours
    words = f"{money.mid:,.0f} {unit} ({money.low:,.0f} to {money.high:,.0f}) in {hours.mid:,.1f} hours"
    if plan.objective == "time":
        words = f"{hours.mid:,.1f} hours ({hours.low:,.1f} to {hours.high:,.1f}) for {money.mid:,.0f} {unit}"
        return "time", words
    return "money" if plan.cost_axis == "usd" else "device-hours", words


def _value(plan: Plan, one: Candidate) -> float:
    return cost_of(one, plan.cost_axis) if plan.objective == "cost" else one.wall_hours.mid


def _rivals(plan: Plan, best: Candidate) -> list[tuple[Candidate, str]]:
    """Return the next on the same kind of device, and the best on another."""
    same = [one for one in plan.candidates[1:] if one.fits == best.fits]
    found = []
    for own, words in ((True, "The next"), (False, "The best on other hardware")):
        others = [one for one in same if (one.device.key == best.device.key) == own]
        others = [one for one in others if isfinite(_value(plan, one))]
        if others:
            found.append((min(others, key=lambda one: _value(plan, one)), words))
    return found


def _because(other: Candidate, best: Candidate) -> str:
    mine, its = _communication(best), _communication(other)
    if its - mine < 0.01:
        return ""
    return f"; communication and bubbles take {its:.0%} of its step, not {mine:.0%}"


def _communication(one: Candidate) -> float:
    parts = one.step_time.parts
    waiting = sum(seconds for name, seconds in parts.items() if any(word in name for word in _COMMUNICATION))
    return waiting / one.step_time.seconds.mid


def _better_but_over(plan: Plan, best: Candidate, searched: Sequence[Searched]) -> tuple[Candidate, str, float] | None:
    """Return the better candidate that is least beyond a limit, the limit, and what it spends of that."""
    over = [pair for one in searched for pair in one.over if _value(plan, pair[0]) < _value(plan, best)]
    known = [pair for pair in over if isfinite(max(pair[1].values()))]
    if not known:
        return None
    nearest, exceeded = min(known, key=lambda pair: max(pair[1].values()))
    name, times = most_exceeded(exceeded)
    return nearest, name, plan.limits.given[name] * times


def _is_same(one: Candidate, other: Candidate) -> bool:
    return one.layout == other.layout and one.device.key == other.device.key
