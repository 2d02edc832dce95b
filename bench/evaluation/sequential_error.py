"""How often the sequential test decides wrongly, over simulated decisions on populations made to mislead it.

    python bench/evaluation/sequential_error.py [--quick] [--decisions 10000] [--json FILE]

The test looks after every example: within a batch the wealth counts at each. A decision is wrong when it was made
before n = N and the full evaluation contradicts it. The truth lies where errors are likeliest: no difference at all, or
exactly the margin. Printed are the error rate and its 95% Clopper-Pearson upper bound; the promise is a rate of at most
alpha. Exits with 1 if the upper bound of any scenario is above alpha.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus
from fastbudget.stats import SequentialPairedTest, clopper_pearson_interval, non_inferiority, proxy_audit

ALPHA = 0.05
MARGIN = 0.01


def changed(baseline, losses, gains, order=None):
    """Return scores with the first so many of 1 set to 0, and of 0 to 1, in the given order of examples."""
    order = np.arange(len(baseline)) if order is None else order
    scores = baseline.copy()
    scores[order[baseline[order] == 1][:losses]] = 0
    scores[order[baseline[order] == 0][:gains]] = 1
    return scores


def binary_baseline(n, accuracy=0.8):
    baseline = np.zeros(n)
    baseline[: round(accuracy * n)] = 1
    return baseline


def no_difference(n):
    baseline = binary_baseline(n)
    churn = max(1, round(0.02 * n))
    scores = changed(baseline, churn, churn)
    return scores, lambda seed: SequentialPairedTest(n, baseline, alpha=ALPHA, seed=seed), ("better", "worse")


def at_margin(n):
    baseline = binary_baseline(n)
    scores = changed(baseline, round(0.02 * n) + round(MARGIN * n), round(0.02 * n))
    return scores, lambda seed: non_inferiority(n, baseline, delta=MARGIN, alpha=ALPHA, seed=seed), ("better",)


def hidden_harm(n):
    baseline = binary_baseline(n)
    confidence = np.random.default_rng(0).random(n)
    scores = changed(baseline, round(MARGIN * n), 0, np.argsort(-confidence))  # the most confident examples are lost
    flip = np.clip(0.3 * (1 - confidence) ** 3, 1e-4, 1)
    return scores, lambda seed: non_inferiority(
        n, baseline, flip_probability=flip, delta=MARGIN, alpha=ALPHA, seed=seed
    ), ("better",)  # fmt: skip


def wrong_probabilities(n):
    generator = np.random.default_rng(1)
    baseline = binary_baseline(n)
    scores = changed(baseline, round(0.02 * n), round(0.02 * n), generator.permutation(n))
    flip = np.where(scores != baseline, 0.001, generator.choice([0.01, 0.9], n))  # the opposite of the truth
    return scores, lambda seed: SequentialPairedTest(n, baseline, flip, alpha=ALPHA, seed=seed), ("better", "worse")


def harmed_clusters(n):
    baseline = binary_baseline(n)
    generator = np.random.default_rng(2)
    generator.shuffle(baseline)
    sizes = generator.integers(1, 30, n)
    clusters = np.repeat(np.arange(n), sizes)[:n]
    scores = changed(baseline, round(MARGIN * n), 0, np.argsort(clusters, kind="stable"))  # all harm in a few clusters
    return scores, lambda seed: non_inferiority(
        n, baseline, delta=MARGIN, alpha=ALPHA, clusters=clusters, seed=seed
    ), ("better",)  # fmt: skip


def rare_large_losses(n):
    baseline = np.full(n, 0.9)
    scores = baseline + 0.01  # nearly all a little better, a few very bad: D = 0 up to rounding, on the side of loss
    losers = round(n / 91)
    scores[:losers] = 0.9 - 0.01 * (n - losers) / losers - 1e-9
    return scores, lambda seed: SequentialPairedTest(n, baseline, alpha=ALPHA, seed=seed), ("better",)


def wrong_proxy(n):
    baseline = binary_baseline(n)
    proxy = changed(baseline, 0, round(0.02 * n))
    scores = proxy.copy()
    scores[: round(0.02 * n)] = 0  # the proxy missed all the harm: D = 0
    return scores, lambda seed: proxy_audit(baseline, proxy, alpha=ALPHA, seed=seed), ("better", "worse")


SCENARIOS = {
    "D = 0": (no_difference, (30, 300, 3_000, 10_000)),
    "D at the margin": (at_margin, (300, 10_000)),
    "harm hidden in confident examples": (hidden_harm, (10_000,)),
    "wrong flip probabilities": (wrong_probabilities, (10_000,)),
    "harm in a few clusters": (harmed_clusters, (3_000,)),
    "rare large losses": (rare_large_losses, (3_000,)),
    "a proxy that misses the harm": (wrong_proxy, (10_000,)),
    "D = 0, many examples": (no_difference, (100_000,)),
}


def error_row(name, scenario, n, decisions):
    scores, make, wrong_answers = scenario(n)
    begin, errors, early = time.perf_counter(), 0, 0
    for seed in range(decisions):
        test = make(seed)
        while test.decision == "undecided":
            indices = test.next_batch(max(1, n // 20))
            test.update(indices, scores[indices])
        if test.num_evaluated < n:
            early += 1
            errors += test.decision in wrong_answers
    upper = clopper_pearson_interval(errors, decisions, 0.9).high  # the end of a one-sided 95% bound
    row = {
        "scenario": name,
        "n": n,
        "decisions": decisions,
        "decided_early": early,
        "errors": errors,
        "error_rate": errors / decisions,
        "upper_bound": upper,
        "seconds": time.perf_counter() - begin,
    }
    print(f"{name:36} N={n:7,}  {errors:5} wrong of {decisions:,} ({row['error_rate']:.4f}, upper bound {upper:.4f}), "
          f"{early / decisions:.3f} decided early  {row['seconds']:.0f} s", flush=True)  # fmt: skip
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 decisions, N up to 10,000")
    parser.add_argument("--decisions", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    decisions = 1000 if options.quick else options.decisions
    rows = [
        error_row(name, scenario, n, decisions)
        for name, (scenario, sizes) in SCENARIOS.items()
        for n in sizes
        if n <= 10_000 or not options.quick
    ]
    if options.json:
        document = {
            "benchmark": "errors of the sequential test",
            "alpha": ALPHA,
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
            "versions": {name: version(name) for name in ("numpy",)} | {"fastbudget": fb.__version__},
            "rows": rows,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    above = [row["scenario"] for row in rows if row["upper_bound"] > ALPHA]
    if above and not options.quick:
        sys.exit(f"the upper bound is above {ALPHA} for: {', '.join(above)}")


if __name__ == "__main__":
    main()
