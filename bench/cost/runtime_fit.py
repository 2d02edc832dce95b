"""Fit the step-time model's constants to measured runs: robust least squares on log time, with priors.

Constants are physical, so each has a prior: what data sheets and benchmarks of single operations say, and how far
real training may be from it. Publishers weigh about the same, however many rows they published.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fastbudget.cost.runtime.links import links_of
from fastbudget.cost.runtime.rates import achievable_rates
from fastbudget.cost.runtime.runtime_constants import RuntimeConstants
from fastbudget.cost.runtime.step_time import step_parts
from fastbudget.cost.transformer.training_layout import TrainingLayout
from fastbudget.cost.transformer.transformer_shape import TransformerShape
from fastbudget.hardware import Device

# Constant -> its prior's middle and standard deviation of the logarithm.
PRIORS: dict[str, tuple[float, float]] = {
    "measured_share": (0.88, 0.06),
    "peak_share": (0.75, 0.07),
    "narrow_share": (0.85, 0.12),
    "half_rows": (60.0, 0.3),
    "half_columns": (30.0, 0.5),
    "half_depth": (60.0, 0.25),
    "wave_loss": (0.5, 0.25),
    "attention_share": (0.65, 0.2),
    "ported_attention": (0.65, 0.15),
    "attention_backward": (1.3, 0.15),
    "half_head": (24.0, 0.4),
    "half_seen": (256.0, 0.5),
    "score_passes": (6.0, 0.4),
    "bandwidth_share": (0.8, 0.07),
    "fused_passes": (2.2, 0.4),
    "eager_passes": (4.5, 0.4),
    "kernels_per_layer": (50.0, 0.5),
    "expert_kernels": (1.8, 0.25),
    "kernels_per_collective": (3.0, 0.5),
    "launch_s": (8e-6, 0.3),
    "cast_passes": (2.0, 0.4),
    "dequantize_passes": (2.0, 0.4),
    "head_passes": (5.0, 0.4),
    "optimizer_passes": (1.2, 0.3),
    "step_s": (0.004, 0.25),
    "link_share": (0.7, 0.2),
    "link_latency_s": (15e-6, 0.4),
    "network_share": (0.6, 0.3),
    "network_latency_s": (20e-6, 0.5),
    "data_overlap": (0.7, 0.12),
    "tensor_overlap": (0.5, 0.25),
    "context_overlap": (0.8, 0.25),
    "expert_share": (0.6, 0.3),
    "expert_overlap": (0.4, 0.25),
    "expert_imbalance": (1.3, 0.2),
    "straggler": (0.008, 0.6),
    "whole_run": (0.2, 0.3),
}
# Shifts are zero before any run is seen; deviations of log speed.
SHIFTS = {"maturity": 0.03}
GENERATION_DEVIATION = 0.1
SOFTWARE_DEVIATION = 0.04
SHARES = (
    "network_share",
    "link_share",
    "measured_share",
    "peak_share",
    "narrow_share",
    "ported_attention",
    "expert_overlap",
    "data_overlap",
    "tensor_overlap",
    "context_overlap",
    "wave_loss",
)
# A publisher's rows of one layout agree to a few percent; its choices differ from ours by this.
NOISE = 0.10
ROWS_PER_PUBLISHER = 24
# Factor on all deviations of the priors; it and the shifts' were chosen by the error on publishers left out.
PRIOR_WIDTH = 1.0
_REWEIGHTINGS = 12
_DIFFERENCE = 0.02
_SMALL_GAIN = 0.05


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A measured step.

    Attributes:
        publisher: who measured it.
        shape: the model.
        layout: how it was trained.
        device: on what.
        software: what trained it.
        seconds: of a step, on average over a run where `whole_run`.
        whole_run: restarts and evaluations are in it.
        noise: deviation of its log time from any model: what its source doesn't say.
    """

    publisher: str
    shape: TransformerShape
    layout: TrainingLayout
    device: Device
    software: str | None
    seconds: float
    whole_run: bool = False
    noise: float = NOISE


def prior_constants(generations: Iterable[str] = (), families: Iterable[str] = ()) -> RuntimeConstants:
    """Return the constants before any run is seen."""
    values = {name: middle for name, (middle, _) in PRIORS.items()}
    return RuntimeConstants(
        **values,
        maturity=0.0,
        generation_shift=dict.fromkeys(sorted(generations), 0.0),
        software_shift=dict.fromkeys(sorted(families), 0.0),
    )


def whole_parts(step: MeasuredStep, constants: RuntimeConstants) -> dict[str, float]:
    """Return the model's time of a step by cause, what a whole run adds included."""
    rates = achievable_rates(step.device, step.layout.precision, software=step.software, constants=constants)
    parts = step_parts(step.shape, step.layout, rates, links_of(step.device, constants))
    if step.whole_run:
        parts["whole_run"] = constants.whole_run * sum(parts.values())
    return parts


def predicted_seconds(step: MeasuredStep, constants: RuntimeConstants) -> float:
    """Return the model's time of a step."""
    return sum(whole_parts(step, constants).values())


def log_errors(steps: Sequence[MeasuredStep], constants: RuntimeConstants) -> np.ndarray:
    """Return log(predicted / measured) of each step."""
    return np.array([math.log(predicted_seconds(step, constants) / step.seconds) for step in steps])


@dataclass(frozen=True)
class Vector:
    """Constants as a vector of deviations from their priors, in standard deviations."""

    prior: RuntimeConstants
    free: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        generations = [f"generation:{name}" for name in self.prior.generation_shift]
        families = [f"software:{name}" for name in self.prior.software_shift]
        return [*self.free, *SHIFTS, *generations, *families]

    def constants(self, vector: np.ndarray) -> RuntimeConstants:
        values: dict[str, Any] = {}
        shifts: dict[str, dict[str, float]] = {"generation": {}, "software": {}}
        for name, deviations in zip(self.names, vector, strict=True):
            if name in PRIORS:
                middle, deviation = PRIORS[name]
                value = middle * math.exp(deviation * deviations)
                values[name] = min(value, 0.98) if name in SHARES else value
            elif name in SHIFTS:
                values[name] = SHIFTS[name] * deviations
            else:
                kind, key = name.split(":", 1)
                width = GENERATION_DEVIATION if kind == "generation" else SOFTWARE_DEVIATION
                shifts[kind][key] = width * deviations
        return replace(self.prior, **values, generation_shift=shifts["generation"], software_shift=shifts["software"])


def thinned(steps: Sequence[MeasuredStep], most: int = ROWS_PER_PUBLISHER) -> list[MeasuredStep]:
    """Return at most so many steps of each publisher, evenly spread over its rows in the order given."""
    groups: dict[str, list[MeasuredStep]] = defaultdict(list)
    for step in steps:
        groups[step.publisher].append(step)
    kept = []
    for group in groups.values():
        count = min(len(group), most)
        kept += [group[(2 * index + 1) * len(group) // (2 * count)] for index in range(count)]
    return kept


@dataclass(frozen=True, kw_only=True)
class Linearized:
    """The model around a point: log errors of steps and their derivatives.

    Attributes:
        vector: the constants as a vector.
        point: where.
        errors: log(predicted / measured), [steps].
        slopes: derivatives by the point's coordinates, [steps, coordinates].
        weights: of the steps: one over the deviation of each.
        prior_width: factor on the priors' deviations.
    """

    vector: Vector
    point: np.ndarray
    errors: np.ndarray
    slopes: np.ndarray
    weights: np.ndarray
    prior_width: float

    @property
    def constants(self) -> RuntimeConstants:
        return self.vector.constants(self.point)

    def best_point(self, kept: np.ndarray | None = None) -> np.ndarray:
        """Return the best point of the linearized model given some of the steps, by reweighted least squares."""
        weights = self.weights if kept is None else self.weights * kept
        point = self.point
        for _ in range(_REWEIGHTINGS):
            scaled = (self.errors + self.slopes @ (point - self.point)) * weights
            # Beyond two deviations a row pulls no harder (pseudo-Huber).
            strength = weights**2 / np.sqrt(1.0 + scaled**2 / 4.0)
            weighted = self.slopes * strength[:, None]
            matrix = self.slopes.T @ weighted + np.eye(len(point)) / self.prior_width**2
            target = weighted.T @ (self.slopes @ self.point - self.errors)
            point = np.linalg.solve(matrix, target)
        return point

    def cost(self) -> float:
        """Return the robust sum of squares and the prior's, at the point."""
        scaled = self.errors * self.weights
        robust = float(np.sum(8.0 * (np.sqrt(1.0 + scaled**2 / 4.0) - 1.0)))
        return robust + float(np.sum(self.point**2)) / self.prior_width**2


def fit_constants(
    steps: Sequence[MeasuredStep],
    *,
    prior: RuntimeConstants,
    free: Sequence[str] | None = None,
    start: np.ndarray | None = None,
    iterations: int = 12,
    prior_width: float = PRIOR_WIDTH,
) -> Linearized:
    """Return the constants that explain measured steps best, given their priors: robust Gauss-Newton.

    Args:
        steps: what was measured.
        prior: where the fit begins.
        free: constants to fit; None: all.
        start: a point to begin at; None: the priors' middles.
        iterations: steps of the solver at most.
        prior_width: factor on the priors' deviations.
    """
    vector = Vector(prior, tuple(PRIORS if free is None else free))
    counts = Counter(step.publisher for step in steps)
    # Rows of one publisher share its unknowns: many count for more than one, but for less than their number.
    weights = np.array([counts[step.publisher] ** -0.35 / step.noise for step in steps])
    point = np.zeros(len(vector.names)) if start is None else start

    def linearized(at: np.ndarray, *, slopes: bool) -> Linearized:
        errors = log_errors(steps, vector.constants(at))
        columns = np.zeros((len(steps), len(at)))
        if slopes:
            for index in range(len(at)):
                moved = at.copy()
                moved[index] += _DIFFERENCE
                columns[:, index] = (log_errors(steps, vector.constants(moved)) - errors) / _DIFFERENCE
        return Linearized(
            vector=vector, point=at, errors=errors, slopes=columns, weights=weights, prior_width=prior_width
        )

    here = linearized(point, slopes=True)
    for _ in range(iterations):
        move = here.best_point() - here.point
        for share in (1.0, 0.5, 0.2, 0.05):
            there = linearized(here.point + share * move, slopes=False)
            if there.cost() < here.cost():
                break
        else:
            return here
        gained = here.cost() - there.cost()
        here = linearized(there.point, slopes=True)
        if gained < _SMALL_GAIN:
            break
    return here


def scalar_names() -> list[str]:
    """Return the constants that are one number."""
    return [
        field.name for field in fields(RuntimeConstants) if field.name not in ("generation_shift", "software_shift")
    ]
