"""Fit the step-time model and its intervals to published runs, and say how well it does on runs it has not seen.

Prints errors with each publisher left out of the fit, and errors on vTrain's single-node rows from a random 50 of
them. ``--write`` puts the constants into the package; ``--out`` the figures into a JSON file.

    python bench/cost/fit_runtime.py --runs published_runs.csv published_full_runs.csv \\
        --vtrain vtrain_a100_single_node.csv --write
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from published_runs import PublishedRun, read_runs
from runtime_fit import (
    Linearized,
    MeasuredStep,
    fit_constants,
    log_errors,
    prior_constants,
    thinned,
    whole_parts,
)
from vtrain_rows import held_out_errors, read_vtrain
from weighted import publisher_weights, weighted_quantile
from write_constants import write_constants

from fastbudget.cost.runtime.device_peaks import generation_of
from fastbudget.cost.runtime.links import links_of
from fastbudget.cost.runtime.rates import achievable_rates
from fastbudget.cost.runtime.runtime_constants import RuntimeConstants
from fastbudget.cost.runtime.software import FAMILIES
from fastbudget.cost.runtime.step_interval import extrapolated_dimensions, relative_width
from fastbudget.hardware import cpu_name, known_devices, usable_cpus

COVERAGE = 0.8


def measured_step(run: PublishedRun) -> MeasuredStep:
    """Return what a published run gives the fit."""
    return MeasuredStep(
        publisher=run.publisher,
        shape=run.shape,
        layout=run.layout,
        device=run.device,
        software=run.software,
        seconds=run.step_time_s,
        whole_run=run.measure.whole_run,
        noise=_noise(run),
    )


def _noise(run: PublishedRun) -> float:
    """Return the deviation of a run's log time from any model: larger, the less its source says."""
    if run.measure.whole_run:
        return 0.18
    return 0.08 + 0.03 * min(len(run.assumed), 4)


def fit(runs: Sequence[PublishedRun]) -> RuntimeConstants:
    """Return constants and intervals fitted to published runs.

    Intervals come from residuals of publishers that were left out, one at a time.
    """
    steps = [measured_step(run) for run in runs]
    return _with_interval(_fitted(steps), steps)


def leave_one_publisher_out(runs: Sequence[PublishedRun]) -> dict[str, RuntimeConstants]:
    """Return, for each publisher, the constants and intervals fitted without it."""
    steps = [measured_step(run) for run in runs]
    start = _fitted(steps)
    held_out = {}
    for publisher in sorted({step.publisher for step in steps}):
        rest = [step for step in steps if step.publisher != publisher]
        kept = np.array([step.publisher != publisher for step in thinned(steps)])
        # From where the linearized model is best without the publisher, not from where it is best with it.
        held_out[publisher] = _with_interval(_fitted(rest, start.best_point(kept), iterations=2), rest)
    return held_out


def _fitted(steps: Sequence[MeasuredStep], start: np.ndarray | None = None, *, iterations: int = 12) -> Linearized:
    generations = {name for device in known_devices() if (name := generation_of(device)) is not None}
    prior = prior_constants(generations, FAMILIES)
    return fit_constants(thinned(steps), prior=prior, start=start, iterations=iterations)


def _with_interval(fitted: Linearized, steps: Sequence[MeasuredStep]) -> RuntimeConstants:
    """Return the constants with an interval from publishers left out in turn of the model linearized at the fit."""
    chosen = [step.publisher for step in thinned(steps)]
    errors = np.zeros(len(steps))
    for publisher in set(chosen):
        point = fitted.best_point(np.array([one != publisher for one in chosen]))
        places = [index for index, step in enumerate(steps) if step.publisher == publisher]
        errors[places] = log_errors([steps[index] for index in places], fitted.vector.constants(point))
    constants = fitted.constants
    low, high = conformal_ends(steps, errors, constants)
    return replace(constants, log_low=low, log_high=high)


def conformal_ends(
    steps: Sequence[MeasuredStep], errors: np.ndarray, constants: RuntimeConstants
) -> tuple[float, float]:
    """Return the ends of the interval in log: quantiles of normalized residuals, publishers weighing the same."""
    scores = [-error / _width(step, constants) for step, error in zip(steps, errors, strict=True)]
    weights = publisher_weights([step.publisher for step in steps])
    publishers = len({step.publisher for step in steps})
    # One more publisher, as yet unseen, could lie anywhere.
    tail = max((1.0 - COVERAGE * (1.0 + 1.0 / publishers)) / 2.0, 0.001)
    low = weighted_quantile(scores, weights, tail)
    high = weighted_quantile(scores, weights, 1.0 - tail)
    return min(low, -0.02), max(high, 0.02)


def _width(step: MeasuredStep, constants: RuntimeConstants) -> float:
    """Return the relative width that the package gives a step's interval, extrapolated dimensions included."""
    rates = achievable_rates(step.device, step.layout.precision, software=step.software, constants=constants)
    links = links_of(step.device, constants)
    outside = extrapolated_dimensions(step.shape, step.layout, step.device, rates, links, step.software)
    return relative_width(whole_parts(step, constants), step.shape, constants, len(outside))


def held_out_table(runs: Sequence[PublishedRun], held_out: dict[str, RuntimeConstants]) -> dict[str, Any]:
    """Return errors, coverage and widths per publisher, and over all with each publisher weighing the same."""
    rows: list[tuple[str, float, bool, float]] = []
    for run in runs:
        constants = held_out[run.publisher]
        step = measured_step(run)
        ratio = float(np.exp(log_errors([step], constants)[0]))
        factor = _width(step, constants)
        low, high = np.exp(constants.log_low * factor), np.exp(constants.log_high * factor)
        rows.append((run.publisher, abs(ratio - 1.0), bool(low <= 1.0 / ratio <= high), float(high - low)))
    weights = publisher_weights([row[0] for row in rows])
    table: dict[str, Any] = {"count": len(rows), **_statistics(rows, weights), "by_publisher": {}}
    for publisher in held_out:
        own = [row for row in rows if row[0] == publisher]
        table["by_publisher"][publisher] = {"count": len(own), **_statistics(own, [1.0] * len(own))}
    return table


def _statistics(rows: Sequence[tuple[str, float, bool, float]], weights: Sequence[float]) -> dict[str, float]:
    errors, widths = [row[1] for row in rows], [row[3] for row in rows]
    covered = sum(weight for row, weight in zip(rows, weights, strict=True) if row[2]) / sum(weights)
    return {
        "median_abs_error": weighted_quantile(errors, weights, 0.5),
        "p90_abs_error": weighted_quantile(errors, weights, 0.9),
        "coverage": covered,
        "median_width": weighted_quantile(widths, weights, 0.5),
    }


def _print(name: str, count: int, one: dict[str, float]) -> None:
    shares = (one["median_abs_error"], one["p90_abs_error"], one["coverage"], one["median_width"])
    print(f"{name:36s} {count:5d} " + " ".join(f"{share:9.1%}" for share in shares))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="CSVs with published_runs.csv's columns")
    parser.add_argument("--vtrain", type=Path, help="CSV of vTrain's single-node rows")
    parser.add_argument("--seeds", type=int, default=7, help="random choices of 50 vTrain rows")
    parser.add_argument("--write", action="store_true", help="put the constants into the package")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args(arguments)
    runs, _ = read_runs(*options.runs)
    machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus()}
    result: dict[str, Any] = {"date": date.today().isoformat(), "machine": machine, "runs": len(runs)}
    if options.vtrain:
        result["vtrain"] = held_out_errors(read_vtrain(options.vtrain), seeds=options.seeds)
        for one in result["vtrain"]:
            print(f"vTrain, 50 of 1,440 rows, seed {one['seed']}: median {one['median_abs_error']:.1%} on the rest")
    table = held_out_table(runs, leave_one_publisher_out(runs))
    result["leave_one_publisher_out"] = table
    print(f"{'publisher left out':36s} {'rows':>5s} {'median':>9s} {'p90':>9s} {'coverage':>9s} {'width':>9s}")
    for publisher, one in table["by_publisher"].items():
        _print(publisher, one["count"], one)
    _print("all, each publisher the same", table["count"], table)
    constants = fit(runs)
    if options.write:
        write_constants(constants, runs)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
