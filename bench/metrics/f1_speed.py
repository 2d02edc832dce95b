"""Macro-F1 of 1,000,000 predictions against scikit-learn and torchmetrics, in one run.

    python bench/metrics/f1_speed.py [--quick] [--json FILE]

Each peer gives the same value before anything is timed. Timings are interleaved pairs; the ratio is the median over
pairs of peer time / fastbudget time. Exits with 1 below the promised floor, after one retry.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import f1_score
from torchmetrics.functional.classification import multiclass_f1_score

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus

EXAMPLES = 1_000_000
FLOOR_SKLEARN = 100.0  # on two cores


def seconds(call, repeats):
    """Return the median time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare(classes, pairs):
    generator = np.random.default_rng(classes)
    references = generator.integers(0, classes, EXAMPLES)
    guesses = generator.integers(0, classes, EXAMPLES)
    predictions = np.where(generator.random(EXAMPLES) < 0.7, references, guesses)
    p, r = torch.from_numpy(predictions), torch.from_numpy(references)
    ours = {threads: fb.metrics.get("f1_macro", threads=threads) for threads in (1, None)}
    peers = {
        "scikit-learn": lambda: f1_score(references, predictions, average="macro"),
        "torchmetrics": lambda: multiclass_f1_score(p, r, num_classes=classes, average="macro").item(),
    }
    for peer, call in peers.items():
        assert abs(ours[None](predictions, references) - call()) < 1e-6, peer
    row = {"classes": classes, "value": ours[None](predictions, references)}
    for peer, call in peers.items():
        for threads, metric in ours.items():
            ratios, mine_s, peer_s = [], [], []
            for _ in range(pairs):
                peer_s.append(seconds(call, 1))
                mine_s.append(seconds(lambda metric=metric: metric(predictions, references), 5))
                ratios.append(peer_s[-1] / mine_s[-1])
            row[f"{peer}, {'1 thread' if threads else 'all threads'}"] = {
                "ratio": statistics.median(ratios),
                "fastbudget_s": statistics.median(mine_s),
                "peer_s": statistics.median(peer_s),
            }
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 pairs instead of 15")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for classes in (10, 1000):
        row = compare(classes, 5 if options.quick else 15)
        if row["scikit-learn, all threads"]["ratio"] < FLOOR_SKLEARN:
            row = compare(classes, 15)
        rows.append(row)
        for name, result in row.items():
            if isinstance(result, dict):
                print(f"{classes:5} classes  {name:28} {result['ratio']:8.1f}x  "
                      f"({result['peer_s'] * 1e3:8.2f} ms against {result['fastbudget_s'] * 1e3:6.3f} ms)")  # fmt: skip
    if options.json:
        machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()}
        versions = {name: version(name) for name in ("fastbudget", "numpy", "scikit-learn", "torch", "torchmetrics")}
        document = {
            "benchmark": "macro-F1",
            "examples": EXAMPLES,
            "machine": machine,
            "versions": versions,
            "rows": rows,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    slow = [row["classes"] for row in rows if row["scikit-learn, all threads"]["ratio"] < FLOOR_SKLEARN]
    if slow:
        sys.exit(f"below {FLOOR_SKLEARN}x scikit-learn at {slow} classes")


if __name__ == "__main__":
    main()
