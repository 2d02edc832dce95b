"""Bootstrap speed against scipy and sacrebleu, and the host cost of the sequential test, in one run.

    python bench/evaluation/bootstrap_speed.py [--quick] [--json FILE]

Ratios are medians over interleaved pairs of peer time / fastbudget time, of the same number of resamples of the same
data. sacrebleu's time is its resampling of both systems from sentence statistics; tokenization isn't timed. Exits with
1 below a promise.
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
import sacrebleu
import sacrebleu.significance
import scipy.stats

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus
from fastbudget.stats import SequentialPairedTest, bootstrap, bootstrap_sums

FLOORS = {
    "scipy.stats.bootstrap, default": 25,
    "scipy.stats.bootstrap, batch=100": 3,
    "scipy.stats.bootstrap of 0 and 1": 1000,
    "sacrebleu paired bootstrap": 50,
}
MOST_MICROSECONDS = 1.0
SENTENCES, BLEU_RESAMPLES = 3000, 1000


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compare(name, mine, peer, pairs, calls=1):
    """Return the median ratio; a short call is timed over several."""
    mine()
    ratios, mine_s, peer_s = [], [], []
    for _ in range(pairs):
        peer_s.append(seconds(peer))
        mine_s.append(seconds(lambda: [mine() for _ in range(calls)]) / calls)
        ratios.append(peer_s[-1] / mine_s[-1])
    row = {
        "peer": name,
        "ratio": statistics.median(ratios),
        "floor": FLOORS[name],
        "peer_s": statistics.median(peer_s),
        "fastbudget_s": statistics.median(mine_s),
    }
    print(f"{name:36} {row['ratio']:8.1f}x (promised {row['floor']}x)  {row['peer_s'] * 1e3:9.1f} ms against "
          f"{row['fastbudget_s'] * 1e3:8.3f} ms", flush=True)  # fmt: skip
    return row


def scipy_rows(pairs, n=10_000, resamples=10_000):
    generator = np.random.default_rng(0)
    values, right = generator.normal(size=n), (generator.random(n) < 0.8).astype(float)

    def peer(data, batch=None):
        return lambda: scipy.stats.bootstrap((data,), np.mean, n_resamples=resamples, batch=batch, rng=1)

    theirs = peer(values, 100)().confidence_interval
    mine = bootstrap(values, resamples=resamples)
    assert abs(mine.low - theirs.low) + abs(mine.high - theirs.high) < 0.1 * (theirs.high - theirs.low)
    default, batched, binary = list(FLOORS)[:3]
    yield compare(batched, lambda: bootstrap(values, resamples=resamples), peer(values, 100), pairs)
    yield compare(default, lambda: bootstrap(values, resamples=resamples), peer(values), pairs)
    yield compare(binary, lambda: bootstrap(right, resamples=resamples), peer(right), pairs, calls=20)


def bleu(totals):
    """Corpus BLEU of sums [..., 10] of sacrebleu's sentence statistics: lengths, matches, totals."""
    system, reference = totals[..., 0], totals[..., 1]
    precisions = totals[..., 2:6] / totals[..., 6:10]
    brevity = np.exp(np.minimum(0, 1 - reference / system))
    return 100 * brevity * np.exp(np.log(precisions).mean(-1))


def sacrebleu_row(pairs):
    generator = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(200)])
    references, systems = [], ([], [])
    for _ in range(SENTENCES):
        sentence = words[generator.integers(0, 200, generator.integers(8, 40))]
        references.append(" ".join(sentence))
        for system, noise in zip(systems, (0.3, 0.33), strict=True):
            noisy = np.where(generator.random(len(sentence)) < noise, words[0], sentence)
            system.append(" ".join(noisy))
    metric = sacrebleu.BLEU(references=[references])
    stats = [metric._extract_corpus_statistics(system, None) for system in systems]
    mine, theirs = (np.array(rows, np.float64) for rows in stats)
    for rows in stats:
        assert abs(bleu(np.array(rows, float).sum(0)) - metric._aggregate_and_compute(rows).score) < 1e-9

    def peer():
        for rows in stats:
            sacrebleu.significance._bootstrap_resample(rows, metric, BLEU_RESAMPLES)

    def own():
        return bootstrap_sums(mine, bleu, baseline=theirs, resamples=BLEU_RESAMPLES)

    return compare("sacrebleu paired bootstrap", own, peer, pairs, calls=3)


def sequential_row(n=1_000_000, k=256):
    baseline = np.zeros(n)
    baseline[: 8 * n // 10] = 1
    scores = baseline.copy()
    scores[: n // 50] = 0
    scores[-n // 50 :] = 1
    times = []
    for seed in range(3):
        test = SequentialPairedTest(n, baseline, seed=seed)
        begin = time.perf_counter()
        while test.num_evaluated < n:
            indices = test.next_batch(k)
            test.update(indices, scores[indices])
        times.append((time.perf_counter() - begin) / n * 1e6)
    row = {"n": n, "batch": k, "microseconds_per_example": statistics.median(times), "most": MOST_MICROSECONDS}
    print(f"next_batch and update, N = {n:,}, {k} at a time: {row['microseconds_per_example']:.3f} us per example")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1 pair instead of 5")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    pairs = 1 if options.quick else 5
    sequential = sequential_row()
    rows = [sacrebleu_row(pairs), *scipy_rows(pairs)]
    if options.json:
        document = {
            "benchmark": "bootstrap and sequential test, host time",
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
            "versions": {name: version(name) for name in ("numpy", "scipy", "sacrebleu")}
            | {"fastbudget": fb.__version__},
            "rows": rows,
            "sequential": sequential,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    slow = [row["peer"] for row in rows if row["ratio"] < row["floor"]]
    if sequential["microseconds_per_example"] > MOST_MICROSECONDS:
        slow.append("next_batch and update")
    if slow:
        sys.exit(f"below the promise: {', '.join(slow)}")


if __name__ == "__main__":
    main()
