"""Does extrapolating learning curves choose better than discarding at fixed epochs? On real curves, replayed.

    python bench/training/extrapolation.py [--digits 60] [--pydocs 48] [--json FILE]

Each task has so many trainings with hyper-parameters drawn at random (`learning_curves`). A search draws 16 of them,
trains them in parts and drops some on the way; it is scored by its cost (evaluations made, as a share of training all
16 to their end) and its regret (the final validation loss it ends with, above the best of the 16, relative). Means are
over 400 draws, the same for every policy.

Policies:

- stop at epoch k: all train to k, the best third (or half, quarter) go on to the end;
- successive halving: the same at several epochs;
- extrapolate and rank: the same two, but ranked by the predicted final loss;
- extrapolate with an interval: at several epochs drop those whose 90% interval lies above the best one's.

The prediction is the best of a power law c + a t^-b and a rational c + a / (t + b), fitted to the curve so far by least
squares on recent points (weights grow with t), with a bootstrap of its residuals for the interval.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from learning_curves import EVALUATIONS, collect

from fastbudget.hardware import cpu_name, usable_cpus

SEARCH, DRAWS, RESAMPLES = 16, 400, 100
RUNGS = (3, 5, 8, 10, 12, 15, 20)
_EXPONENTS = np.geomspace(0.05, 3.0, 16)
_OFFSETS = np.geomspace(0.1, 100.0, 16)


class Extrapolation:
    """Fits at one epoch of a run of known length; what depends on the epoch alone is computed once."""

    def __init__(self, epoch, epochs):
        t = np.arange(1, epoch + 1, dtype=float)
        self.weights = np.sqrt(t / t.mean())
        designs, ends = [], []
        for shape in [lambda t, b=b: t**-b for b in _EXPONENTS] + [lambda t, b=b: 1 / (t + b) for b in _OFFSETS]:
            designs.append(np.stack([np.ones(epoch), shape(t)], axis=1))
            ends.append([1.0, shape(float(epochs))])
        self.designs, self.ends = np.array(designs), np.array(ends)
        self.solvers = np.array([np.linalg.pinv(design * self.weights[:, None]) for design in designs])

    def fit(self, losses):
        """Predicted final values [R] of curves [R, epoch], each by the family member that fits it best, and its fit."""
        weighted = losses * self.weights
        solved = np.einsum("fpe,re->rfp", self.solvers, weighted)
        solved[..., 1] = np.maximum(solved[..., 1], 0.0)  # a loss is not expected to rise
        solved[..., 0] = np.mean(
            weighted[:, None] * self.weights - solved[..., 1, None] * self.designs[None, :, :, 1] * self.weights**2, -1
        ) / np.mean(self.weights**2)
        fitted = np.einsum("fep,rfp->rfe", self.designs, solved)
        errors = (((fitted - losses[:, None]) * self.weights) ** 2).sum(-1)
        best = errors.argmin(1)
        rows = np.arange(len(losses))
        return np.einsum("fp,rfp->rf", self.ends, solved)[rows, best], fitted[rows, best]

    def interval(self, losses, generator):
        """Prediction and the ends of its 90% interval, by resampling the residuals."""
        middle, fitted = self.fit(losses[None])
        residuals = (losses - fitted[0]) * np.sqrt(len(losses) / max(1, len(losses) - 3))
        resampled = fitted[0] + generator.choice(residuals, (RESAMPLES, len(losses)))
        ends, _ = self.fit(resampled)
        noise = generator.choice(residuals, RESAMPLES)
        low, high = np.quantile(ends + noise, [0.05, 0.95])
        return middle[0], low, high


class Predictions:
    """What is predicted for each curve at each epoch asked for."""

    def __init__(self, curves):
        self.curves, self.known = curves, {}

    def at(self, epoch):
        """[curves, 3]: middle, low, high."""
        if epoch not in self.known:
            model, generator = Extrapolation(epoch, self.curves.shape[1]), np.random.default_rng(epoch)
            self.known[epoch] = np.array([model.interval(curve[:epoch], generator) for curve in self.curves])
        return self.known[epoch]


def stop_at(curves, rows, rungs, keep, score):
    """Train to each rung, keep the share that scores best; returns who is left in the end, and the evaluations made."""
    alive, made, before = rows, 0, 0
    for rung in rungs:
        made += len(alive) * (rung - before)
        before = rung
        order = np.argsort(score(alive, rung), kind="stable")
        alive = alive[order[: max(1, round(len(alive) * keep))]]
    return alive, made + len(alive) * (curves.shape[1] - before)


def by_interval(curves, rows, rungs, predictions):
    alive, made, before = rows, 0, 0
    for rung in rungs:
        made += len(alive) * (rung - before)
        before = rung
        _, low, high = predictions.at(rung)[alive].T
        alive = alive[low <= high.min()]
    return alive, made + len(alive) * (curves.shape[1] - before)


def policies(curves, predictions):
    def seen(alive, rung):
        return curves[alive, rung - 1]

    def predicted(alive, rung):
        return predictions.at(rung)[alive, 0]

    found = {}
    for keep, name in ((1 / 2, "half"), (1 / 3, "third"), (1 / 4, "quarter")):
        for rung in RUNGS:
            found["stop at epoch k", f"{rung}, best {name}"] = lambda rows, rung=rung, keep=keep: stop_at(
                curves, rows, [rung], keep, seen
            )
            if rung >= 5:
                found["extrapolate and rank", f"{rung}, best {name}"] = lambda rows, rung=rung, keep=keep: stop_at(
                    curves, rows, [rung], keep, predicted
                )
    for rungs in ((3, 8), (5, 10), (5, 15), (3, 8, 20), (5, 10, 20)):
        for keep, name in ((1 / 2, "half"), (1 / 3, "third")):
            found["successive halving", f"{rungs}, best {name}"] = lambda rows, rungs=rungs, keep=keep: stop_at(
                curves, rows, rungs, keep, seen
            )
            if rungs[0] >= 5:
                found["extrapolate and rank", f"{rungs}, best {name}"] = lambda rows, rungs=rungs, keep=keep: stop_at(
                    curves, rows, rungs, keep, predicted
                )
    for rungs in ((5,), (8,), (12,), (5, 10), (5, 10, 15), (8, 12, 16, 20), tuple(range(5, 26, 2))):
        found["extrapolate with an interval", str(rungs)] = lambda rows, rungs=rungs: by_interval(
            curves, rows, rungs, predictions
        )
    return found


def score(curves, policy):
    """Mean cost and mean regret over the draws."""
    costs, regrets = [], []
    generator = np.random.default_rng(0)
    for _ in range(DRAWS):
        rows = generator.choice(len(curves), SEARCH, replace=False)
        alive, made = policy(rows)
        costs.append(made / (SEARCH * curves.shape[1]))
        best = curves[rows, -1].min()
        regrets.append(curves[alive, -1].min() / best - 1)
    return float(np.mean(costs)), float(np.mean(regrets))


def coverage(curves, predictions):
    """How often the 90% interval holds the final loss, and the mean relative error of its middle, by epoch."""
    rows = []
    for rung in (5, 8, 12, 15, 20):
        middle, low, high = predictions.at(rung).T
        final = curves[:, -1]
        rows.append({
            "epoch": rung,
            "inside": float(np.mean((low <= final) & (final <= high))),
            "mean_error": float(np.mean(np.abs(middle / final - 1))),
            "mean_error_of_last_seen": float(np.mean(np.abs(curves[:, rung - 1] / final - 1))),
        })  # fmt: skip
    return rows


def frontier(rows):
    """Those that no other beats in both cost and regret."""
    return [
        row
        for row in rows
        if not any(
            other["cost"] <= row["cost"] and other["regret"] <= row["regret"] and other is not row for other in rows
        )
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--digits", type=int, default=60, help="curves of the perceptron")
    parser.add_argument("--pydocs", type=int, default=48, help="curves of the small GPT")
    parser.add_argument("--curves", type=Path, help="read the curves from this file, or write them there")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.curves is not None and options.curves.exists():
        tasks = json.loads(options.curves.read_text())
    else:
        tasks = {kind: collect(kind, getattr(options, kind)) for kind in ("digits", "pydocs")}
        if options.curves is not None:
            options.curves.write_text(json.dumps(tasks))
    results = {}
    for kind, trainings in tasks.items():
        curves = np.array([training["losses"] for training in trainings])
        curves = np.where(np.isfinite(curves), curves, 1e3)
        predictions = Predictions(curves)
        rows = []
        for (policy, setting), run in policies(curves, predictions).items():
            cost, regret = score(curves, run)
            rows.append({"policy": policy, "setting": setting, "cost": cost, "regret": regret})
        results[kind] = {
            "curves": len(curves), "frontier": sorted(frontier(rows), key=lambda row: row["cost"]),
            "extrapolation": coverage(curves, predictions), "policies": rows,
        }  # fmt: skip
        print(f"{kind}: {len(curves)} curves of {EVALUATIONS} evaluations")
        for row in results[kind]["extrapolation"]:
            print(
                f"  after {row['epoch']:2}: inside the 90% interval {row['inside']:.0%}, error {row['mean_error']:.1%} "
                f"(last value seen: {row['mean_error_of_last_seen']:.1%})"
            )
        for row in results[kind]["frontier"]:
            print(f"  cost {row['cost']:.2f} regret {row['regret']:7.3%}  {row['policy']}: {row['setting']}")
    if options.json:
        document = {
            "benchmark": "extrapolating learning curves against discarding at fixed epochs",
            "search": SEARCH, "draws": DRAWS, "results": results,
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
            "versions": {name: version(name) for name in ("fastbudget", "numpy", "scikit-learn", "torch")},
        }  # fmt: skip
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
