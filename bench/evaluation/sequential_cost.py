"""How many examples decisions take: simulated changes, and checkpoints of a real training run.

    python bench/evaluation/sequential_cost.py [--quick] [--json FILE]

Simulated: N = 10,000 binary scores, 2% of examples get worse and 2% + D better, uniform draws, a look every 50.
Checkpoints: pairs of one training run (bench/evaluation/digit_checkpoints.py), drawn uniformly and weighted by flip
probabilities that are predicted from the comparison before; once as they are (N = 10,000) and once ten times over
(N = 100,000). "Undecided" is the share of tests that went to n = N. Exits with 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from digit_checkpoints import flip_probability, predictions

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus
from fastbudget.stats import SequentialPairedTest

PROMISED = {0.01: 2984, 0.02: 1283, 0.03: 657, 0.05: 352}  # mean n of the uniform draw
TOLERANCE = 1.1
PAIRS = [(1, 2), (2, 4), (4, 6), (5, 7), (6, 8), (8, 12), (10, 14), (12, 18), (14, 16), (15, 16), (17, 18), (18, 19)]


def cost(baseline, scores, repeats, flip=None):
    """Return the mean number of examples, the share of wrong decisions and of tests that went to the end."""
    difference = scores.mean() - baseline.mean()
    truth = "better" if difference > 0 else "worse" if difference < 0 else "equal"
    counts, wrong, undecided = [], 0, 0
    for seed in range(repeats):
        test = SequentialPairedTest(len(baseline), baseline, flip, seed=seed)
        while test.decision == "undecided":
            indices = test.next_batch(50)
            test.update(indices, scores[indices])
        counts.append(test.num_evaluated)
        wrong += test.decision != truth
        undecided += test.num_evaluated == len(baseline)
    return {"examples": float(np.mean(counts)), "wrong": wrong / repeats, "undecided": undecided / repeats}


def simulated(difference, repeats, n=10_000):
    baseline = np.zeros(n)
    baseline[: 8 * n // 10] = 1
    scores = baseline.copy()
    scores[: round(0.02 * n)] = 0
    scores[8 * n // 10 : 8 * n // 10 + round((0.02 + difference) * n)] = 1
    row = {"difference": difference, "promised": PROMISED[difference], **cost(baseline, scores, repeats)}
    print(f"simulated, D = {difference:.0%}: {row['examples']:6.0f} examples (promised {row['promised']}), "
          f"wrong {row['wrong']:.3f}, undecided {row['undecided']:.3f}", flush=True)  # fmt: skip
    return row


def checkpoints(outputs, labels, first, second, copies, repeats):
    right = (outputs.argmax(2) == labels).astype(float)
    baseline, scores = (np.tile(right[i], copies) for i in (first, second))
    flip = np.tile(flip_probability(outputs[first - 1], outputs[first], labels), copies)
    uniform, weighted = cost(baseline, scores, repeats), cost(baseline, scores, repeats, flip)
    row = {
        "pair": [first, second],
        "n": len(baseline),
        "difference": float(scores.mean() - baseline.mean()),
        "churn": float((scores != baseline).mean()),
        "uniform": uniform,
        "weighted": weighted,
        "weighted_saves": uniform["examples"] / weighted["examples"],
        "times_fewer_than_all": len(baseline) / weighted["examples"],
    }
    print(f"{first:2} -> {second:2}, N = {row['n']:,}, D = {row['difference']:7.2%}, churn {row['churn']:.1%}: uniform "
          f"{uniform['examples']:7.0f}, weighted {weighted['examples']:7.0f} ({row['weighted_saves']:.2f}x fewer, "
          f"{row['times_fewer_than_all']:.1f}x fewer than all), wrong {weighted['wrong']:.3f}, undecided "
          f"{uniform['undecided']:.2f} and {weighted['undecided']:.2f}", flush=True)  # fmt: skip
    return row


def broken_promises(rows, pairs):
    for row in rows:
        if row["examples"] > TOLERANCE * row["promised"]:
            yield f"D = {row['difference']:.0%}: {row['examples']:.0f} examples"
    for row in pairs:
        name = f"{row['pair'][0]} -> {row['pair'][1]}, N = {row['n']:,}"
        size = abs(row["difference"])
        # Where all must be evaluated anyway there is nothing to save.
        if row["churn"] < 0.1 and row["uniform"]["undecided"] < 0.5 and row["weighted_saves"] < 1.5:
            yield f"{name}: weighted draws save {row['weighted_saves']:.2f}x"
        least = (
            (60 if size >= 0.017 else 0) if row["n"] > 50_000 else 25 if size >= 0.05 else 10 if size >= 0.025 else 0
        )
        if row["times_fewer_than_all"] < least:
            yield f"{name}: {row['times_fewer_than_all']:.1f}x fewer than all"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="50 tests each, N = 10,000 only")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    rows = [simulated(difference, 100 if options.quick else 2000) for difference in PROMISED]
    outputs, labels = predictions()
    sizes = [(1, 50)] if options.quick else [(1, 400), (10, 100)]
    pairs = [checkpoints(outputs, labels, *pair, copies, repeats) for copies, repeats in sizes for pair in PAIRS]
    broken = list(broken_promises(rows, pairs))
    if options.json:
        document = {
            "benchmark": "examples per decision",
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
            "versions": {name: version(name) for name in ("numpy", "torch")} | {"fastbudget": fb.__version__},
            "simulated": rows,
            "checkpoints": pairs,
            "broken_promises": broken,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if broken:
        sys.exit("broken promises: " + "; ".join(broken))


if __name__ == "__main__":
    main()
