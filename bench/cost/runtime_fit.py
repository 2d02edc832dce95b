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
from scipy.optimize import least_squares

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
    "half_rows": (60.0, 0.5),
    "half_columns": (30.0, 0.5),
    "half_depth": (80.0, 0.5),
    "wave_loss": (0.5, 0.4),
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
    "kernels_per_collective": (3.0, 0.5),
    "launch_s": (8e-6, 0.3),
    "cast_passes": (2.0, 0.4),
    "head_passes": (5.0, 0.4),
    "optimizer_passes": (1.2, 0.3),
    "step_s": (0.004, 0.7),
    "link_share": (0.7, 0.2),
    "link_latency_s": (15e-6, 0.4),
    "network_share": (0.6, 0.3),
    "network_latency_s": (20e-6, 0.5),
    "data_overlap": (0.7, 0.25),
    "tensor_overlap": (0.5, 0.25),
    "context_overlap": (0.8, 0.25),
    "expert_share": (0.6, 0.3),
    "expert_overlap": (0.3, 0.4),
    "expert_imbalance": (1.15, 0.1),
    "straggler": (0.008, 0.6),
    "whole_run": (0.08, 0.5),
}
# Shifts are zero before any run is seen; deviations of log speed.
MATURITY_DEVIATION = 0.08
GENERATION_DEVIATION = 0.12
SOFTWARE_DEVIATION = 0.12
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
    """

    publisher: str
    shape: TransformerShape
    layout: TrainingLayout
    device: Device
    software: str | None
    seconds: float
    whole_run: bool = False


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
        return [*self.free, "maturity", *generations, *families]

    def constants(self, vector: np.ndarray) -> RuntimeConstants:
        values: dict[str, Any] = {}
        shifts: dict[str, dict[str, float]] = {"generation": {}, "software": {}}
        for name, deviations in zip(self.names, vector, strict=True):
            if name in PRIORS:
                middle, deviation = PRIORS[name]
                value = middle * math.exp(deviation * deviations)
                values[name] = min(value, 0.98) if name in SHARES else value
            elif name == "maturity":
                values[name] = MATURITY_DEVIATION * deviations
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


def fit_constants(
    steps: Sequence[MeasuredStep],
    *,
    prior: RuntimeConstants,
    free: Sequence[str] | None = None,
    noise: float = NOISE,
    start: np.ndarray | None = None,
    evaluations: int = 15,
    prior_width: float = 1.0,
) -> tuple[RuntimeConstants, np.ndarray]:
    """Return the constants that explain measured steps best, given their priors, and them as a vector.

    Args:
        steps: what was measured.
        prior: where the fit begins.
        free: constants to fit; None: all.
        noise: deviation of a row's log time.
        start: a vector to begin at.
        evaluations: steps of the solver at most.
        prior_width: factor on the priors' deviations.
    """
    vector = Vector(prior, tuple(PRIORS if free is None else free))
    counts = Counter(step.publisher for step in steps)
    # Rows of one publisher share its unknowns: many count for more than one, but for less than their number.
    weights = np.array([counts[step.publisher] ** -0.35 for step in steps]) / noise

    def residuals(point: np.ndarray) -> np.ndarray:
        errors = log_errors(steps, vector.constants(point)) * weights
        # Pseudo-Huber: beyond two deviations a row pulls no harder.
        robust = np.sign(errors) * np.sqrt(2.0 * 4.0 * (np.sqrt(1.0 + errors**2 / 4.0) - 1.0))
        return np.concatenate([robust, point / prior_width])

    begin = np.zeros(len(vector.names)) if start is None else start
    found = least_squares(residuals, begin, method="trf", max_nfev=evaluations, x_scale=1.0, diff_step=1e-3)
    return vector.constants(found.x), found.x


def scalar_names() -> list[str]:
    """Return the constants that are one number."""
    return [
        field.name for field in fields(RuntimeConstants) if field.name not in ("generation_shift", "software_shift")
    ]
