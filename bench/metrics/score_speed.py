"""AUROC of a million scores against scikit-learn, and macro-F1 in batches of 256 against torchmetrics.

    python bench/metrics/score_speed.py [--quick] [--json FILE]

Each peer gives the same value before anything is timed; ratios are medians over interleaved pairs. For a million
examples of 1,000 classes in batches of 256 torchmetrics takes minutes under torch's deterministic algorithms and many
seconds otherwise, so it is timed on some batches and scaled up; fastbudget runs over all. Exits with 1 below the
promised floors, after one retry.
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
from sklearn.metrics import average_precision_score, roc_auc_score
from torchmetrics.classification import MulticlassF1Score

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus

CLASSES, BATCH = 1000, 256


def area_cases(n):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, n)
    scores = generator.normal(0, 1, n) + labels
    rounded = np.round(scores, 2)  # many ties
    for name, peer, floor in (("auroc", roc_auc_score, 5), ("average_precision", average_precision_score, None)):
        metric = fb.metrics.get(name)
        for kind, values in (("distinct scores", scores), ("ties", rounded)):
            yield (
                f"{name}, {n} {kind}",
                "scikit-learn",
                floor,
                lambda metric=metric, values=values: metric(values, labels),
                lambda peer=peer, values=values: peer(labels, values),
                1,
            )


def batch_cases(quick):
    """Ours runs over all of a million examples; torchmetrics over some batches, and its time is scaled up to all."""
    batches = 1_000_000 // BATCH
    generator = np.random.default_rng(1)
    references = generator.integers(0, CLASSES, (batches, BATCH))
    guesses = generator.integers(0, CLASSES, (batches, BATCH))
    predictions = np.where(generator.random((batches, BATCH)) < 0.7, references, guesses)
    p, r = torch.from_numpy(predictions), torch.from_numpy(references)

    def ours(count=batches):
        metric = fb.metrics.get("f1_macro", num_classes=CLASSES)
        state = metric.init()
        for i in range(count):
            state = metric.update(state, predictions[i], references[i])
        return metric.result(state)

    def peer(count, deterministic, forward):
        metric = MulticlassF1Score(num_classes=CLASSES, average="macro")
        torch.use_deterministic_algorithms(deterministic)
        for i in range(count):
            metric(p[i], r[i]) if forward else metric.update(p[i], r[i])
        torch.use_deterministic_algorithms(False)
        return metric.compute().item()

    name = f"macro-F1 of {CLASSES} classes, {batches} batches of {BATCH}"
    for mode, floor, count, deterministic, forward in (
        ("torchmetrics, deterministic", 1000, 2, True, True),
        ("torchmetrics, forward", None, 20 if quick else 100, False, True),
        ("torchmetrics, update", None, 20 if quick else 100, False, False),
    ):
        arguments = (count, deterministic, forward)
        assert abs(ours(count) - peer(*arguments)) < 1e-6, mode
        yield name, mode, floor, ours, lambda arguments=arguments: peer(*arguments), batches / count


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio_of(ours, peer, scale, pairs):
    mine, theirs = [], []
    for _ in range(pairs):
        theirs.append(scale * seconds(peer))
        mine.append(statistics.median(seconds(ours) for _ in range(3)))
    return {
        "ratio": statistics.median(t / m for t, m in zip(theirs, mine, strict=True)),
        "fastbudget_s": statistics.median(mine),
        "peer_s": statistics.median(theirs),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less data")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, slow = [], []
    cases = [*area_cases(200_000 if options.quick else 1_000_000), *batch_cases(options.quick)]
    for name, peer_name, floor, ours, peer, scale in cases:
        assert scale != 1 or abs(ours() - peer()) < 1e-6, name
        result = ratio_of(ours, peer, scale, 5)
        if floor is not None and result["ratio"] < floor:
            result = ratio_of(ours, peer, scale, 7)
        rows.append({"case": name, "peer": peer_name, "promised": floor, "peer_scaled_by": scale, **result})
        print(f"{name:48} {peer_name:28} {result['ratio']:8.1f}x  "
              f"({result['peer_s'] * 1e3:8.1f} ms against {result['fastbudget_s'] * 1e3:7.2f} ms)")  # fmt: skip
        if floor is not None and result["ratio"] < floor:
            slow.append(f"{name}: {result['ratio']:.1f}x {peer_name}, promised {floor}x")
    if options.json:
        document = {
            "benchmark": "areas under curves, batched macro-F1",
            "quick": options.quick,
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
            "versions": {p: version(p) for p in ("fastbudget", "numpy", "scikit-learn", "torch", "torchmetrics")},
            "rows": rows,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if slow:
        sys.exit("\n".join(slow))


if __name__ == "__main__":
    main()
