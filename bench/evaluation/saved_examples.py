"""Real checkpoints compared: the full evaluation's decision, and how few examples it takes.

    python bench/evaluation/saved_examples.py [--quick] [--json FILE]

A small convolutional network learns scikit-learn's digits, placed at random in a larger noisy image; 24 checkpoints are
kept. Pairs of them are compared by `fb.compare` over several draws, drawn uniformly, by the baseline's margins, and by
flip rates learnt from the checkpoint before the baseline; the truth is the full evaluation. Then the workflow as a user
runs it, model and all: each checkpoint against the best so far, in full and sequentially, with wall times.

Decided before the end means "better", "worse" or "not_worse" from a part; the rest ends with the full evaluation.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import fastbudget as fb
from fastbudget.evaluation import FlipRates, HashedData
from fastbudget.hardware import cpu_name, usable_cpus
from fastbudget.stats import clopper_pearson_interval

ALPHA = 0.05


def images_of(rows, count, generator):
    """Return noisy 12 × 12 images with a digit somewhere in each, and their classes."""
    digits = load_digits()
    chosen = generator.choice(rows, count)
    images = generator.normal(0, 0.3, (count, 1, 12, 12)).astype(np.float32)
    for image, digit, top, left in zip(images, chosen, *generator.integers(0, 5, (2, count)), strict=True):
        image[0, top : top + 8, left : left + 8] += digits.images[digit].astype(np.float32) / 16
    return images, digits.target[chosen]


class Images:
    def __init__(self, images, classes):
        self.images, self.classes = images, classes

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, index):
        return self.images[index], int(self.classes[index])


def train(images, classes, checkpoints, steps_between):
    """Return the states of a network in training."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, checkpoints * steps_between)
    x, y = torch.from_numpy(images), torch.from_numpy(classes)
    states = []
    for step in range(1, checkpoints * steps_between + 1):
        rows = torch.randint(len(x), (128,))
        F.cross_entropy(network(x[rows]), y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % steps_between == 0:
            states.append(copy.deepcopy(network.state_dict()))
    return network.eval(), states


def compare_pair(data, records, logits, baseline, candidate, margin, draws):
    """Return what one pair takes, by kind of draw."""
    truth = records[candidate]["accuracy"].value - records[baseline]["accuracy"].value
    right = truth >= -margin if margin else truth > 0
    scores = [records[index].examples.scores["accuracy"] for index in (baseline, candidate)]
    row = {
        "baseline": baseline,
        "candidate": candidate,
        "margin": margin,
        "difference": truth,
        "churn": float(np.mean(scores[0] != scores[1])),
    }
    rates = FlipRates(records[baseline - 1], records[baseline])
    lookup = logits[candidate]
    for name, options in {
        "uniform": {"weighted": False},
        "margins": {},
        "flip rates": {"flip_rates": rates},
    }.items():
        verdicts = [
            fb.compare(
                records[baseline],
                lambda inputs: lookup[inputs[:, 0, 0, 0].astype(int)],
                data,
                margin=margin,
                alpha=ALPHA,
                seed=seed,
                batch_size=50,
                model_key=f"checkpoint {candidate}",
                **options,
            )
            for seed in range(draws)
        ]
        early = [verdict for verdict in verdicts if verdict.n < verdict.N]
        row[name] = {
            "mean_n": statistics.mean(verdict.n for verdict in verdicts),
            "decided_early": len(early),
            "wrong": sum(bool(verdict.passed) != right for verdict in early),
            "draws": draws,
        }
    return row


class Numbered:
    """The examples by number, so that a look-up can stand for the model."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return np.full((1, 1, 1), index, np.float32), int(self.data.classes[index])


def workflow(network, states, data, store):
    """Each checkpoint against the best so far: in full, and sequentially. Returns both costs and choices.

    Sequentially nothing is evaluated in full but the first and the chosen one: the best so far is run on those drawn
    examples that it wasn't run on yet.
    """
    hashed = HashedData(data)
    best_network = copy.deepcopy(network)

    def prediction(of):
        @torch.no_grad()
        def predict(inputs):
            return of(torch.from_numpy(inputs))

        return predict

    start, run, found = time.perf_counter(), 0, []
    for state in states:
        network.load_state_dict(state)
        found.append(fb.evaluate(prediction(network), hashed)["accuracy"].value)
        run += len(hashed)
    best = int(np.argmax(found))
    full = {"chosen": best, "accuracy": found[best], "examples_run": run, "seconds": time.perf_counter() - start}

    start, run, best, record = time.perf_counter(), 0, 0, None
    for index, state in enumerate(states):
        network.load_state_dict(state)
        if record is None:
            record = fb.evaluate(prediction(network), hashed, store=store, model_key=network)
            best_network.load_state_dict(state)
            run += record.n
            continue
        verdict = fb.compare(
            record, prediction(network), hashed, margin=0.0, alpha=ALPHA, store=store, model_key=network,
            baseline_predict=prediction(best_network),
        )  # fmt: skip
        run += verdict.num_predicted + verdict.num_baseline_predicted
        if verdict.decision == "better":
            best, record = index, verdict.candidate
            best_network.load_state_dict(state)
    final = fb.evaluate(prediction(best_network), hashed, store=store, model_key=best_network)
    run += final.n - final.num_cached
    sequential = {
        "chosen": best,
        "accuracy": final["accuracy"].value,
        "examples_run": run,
        "seconds": time.perf_counter() - start,
    }
    return {"full": full, "sequential": sequential}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="12 checkpoints, 3,000 test images, 4 draws")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count, size, draws = (12, 3000, 4) if options.quick else (24, 10_000, 4)
    generator = np.random.default_rng(0)
    rows = generator.permutation(1797)
    network, states = train(*images_of(rows[:1000], 20_000, generator), count, 78)
    data = Images(*images_of(rows[1000:], size, generator))
    numbered = HashedData(Numbered(data))
    logits = []
    for state in states:
        network.load_state_dict(state)
        with torch.no_grad():
            logits.append(network(torch.from_numpy(data.images)).numpy())
    records = [
        fb.evaluate(
            lambda inputs, said=said: said[inputs[:, 0, 0, 0].astype(int)], numbered, model_key=f"checkpoint {k}"
        )
        for k, said in enumerate(logits)
    ]
    pairs = [(k, min(k + gap, count - 1)) for gap in (1, 2, 4) for k in range(1, count - 1, 2 if options.quick else 3)]
    results = []
    for margin in (0.0, 0.01):
        for baseline, candidate in dict.fromkeys(pairs):
            row = compare_pair(numbered, records, logits, baseline, candidate, margin, draws)
            results.append(row)
            shown = "  ".join(f"{kind} {row[kind]['mean_n']:7.0f}" for kind in ("uniform", "margins", "flip rates"))
            print(f"{baseline:2} -> {candidate:2}  margin {margin:.2f}  D {row['difference']:+.4f}  "
                  f"churn {row['churn']:.3f}  {shown}", flush=True)  # fmt: skip
    summary = {}
    for kind in ("uniform", "margins", "flip rates"):
        early, wrong, all_draws = (
            sum(row[kind][key] for row in results) for key in ("decided_early", "wrong", "draws")
        )
        upper = clopper_pearson_interval(wrong, early, 0.9).high if early else None
        low_churn = [row for row in results if row["churn"] < 0.1]
        summary[kind] = {
            "decided_early": early,
            "undecided_share": 1 - early / all_draws,
            "wrong": wrong,
            "error_upper_bound_95": upper,
            "fewer_than_full_by_difference": {
                f">= {at:.1%}": statistics.median([size / row[kind]["mean_n"] for row in chosen])
                for at in (0.005, 0.01, 0.025, 0.05)
                if (chosen := [row for row in results if not row["margin"] and abs(row["difference"]) >= at])
            },
            "fewer_than_uniform_at_churn_below_10%": statistics.median(
                row["uniform"]["mean_n"] / row[kind]["mean_n"] for row in low_churn
            ),
        }
        print(kind, json.dumps(summary[kind]))
    with tempfile.TemporaryDirectory() as directory, fb.EvaluationStore(Path(directory) / "evals.db") as store:
        whole = workflow(network, states, data, store)
    print("workflow", json.dumps(whole))
    if options.json:
        document = {
            "benchmark": "examples saved by sequential comparison",
            "examples": size,
            "alpha": ALPHA,
            "checkpoints": count,
            "accuracies": [record["accuracy"].value for record in records],
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
            "versions": {name: version(name) for name in ("fastbudget", "numpy", "scikit-learn", "torch")},
            "summary": summary,
            "workflow": whole,
            "rows": results,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
