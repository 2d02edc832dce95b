"""A whole training run with `Cadence` against a full evaluation at each call: cost, and the checkpoint that is chosen.

    python bench/evaluation/cadence_training.py [--seeds 3] [--epochs 12] [--json FILE]

A small convolutional network learns scikit-learn's digits, shifted and noisy; 10,000 held-out examples. Both ways
evaluate the same checkpoints, two per epoch; the full one isn't on the cadence's clock. Printed per seed: examples that
each predicted, seconds, evaluation's share of the time, and the full accuracy of the checkpoint that each chose: for
the cadence that of the greatest value, as `fb.Trainer` chooses, with one final full evaluation; then with one of all
its contenders. The cadence's cost holds the hashing of the data.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import fastbudget as fb
from fastbudget.evaluation import Cadence
from fastbudget.hardware import cpu_name, usable_cpus

NUM_TRAIN, NUM_TEST, BATCH = 20_000, 10_000, 128


def shifted_digits(images, labels, count, rng):
    chosen = rng.integers(0, len(images), count)
    canvas = np.zeros((count, 12, 12), np.float32)
    for index, (dx, dy) in enumerate(rng.integers(0, 5, (count, 2))):
        canvas[index, dx : dx + 8, dy : dy + 8] = images[chosen[index]]
    canvas += rng.normal(0, 0.3, canvas.shape).astype(np.float32)
    return torch.from_numpy(canvas)[:, None], torch.from_numpy(labels[chosen])


def build_data(seed):
    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16.0
    order = rng.permutation(len(images))
    train, test = order[:1000], order[1000:]
    return (
        shifted_digits(images[train], labels[train], NUM_TRAIN, rng),
        shifted_digits(images[test], labels[test], NUM_TEST, rng),
    )


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


class PausableClock:
    """Seconds, without those of the full evaluations that are only here for comparison."""

    def __init__(self):
        self.paused_s = 0.0

    def __call__(self):
        return time.perf_counter() - self.paused_s


def no_grad(model):
    def predict(inputs):
        with torch.no_grad():
            return model(inputs)

    return predict


def seconds_per_step(train_x, train_y, steps=40):
    model, seconds = build_model(), []
    for start in range(0, steps * BATCH, BATCH):
        begun = time.perf_counter()
        nn.functional.cross_entropy(model(train_x[start : start + BATCH]), train_y[start : start + BATCH]).backward()
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds))


def run(seed, epochs):
    torch.manual_seed(seed)
    (train_x, train_y), (test_x, test_y) = build_data(seed)
    held_out = torch.utils.data.TensorDataset(test_x, test_y)
    model = build_model()
    steps = epochs * (NUM_TRAIN // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    clock = PausableClock()
    expected_train_s = seconds_per_step(train_x, train_y) * steps
    cadence = Cadence(no_grad, held_out, clock=clock, expected_train_s=expected_train_s)
    checkpoints, accuracies, full_s = [], [], 0.0
    step = 0
    for _ in range(epochs):
        order = torch.randperm(NUM_TRAIN)
        for start in range(0, NUM_TRAIN - BATCH + 1, BATCH):
            where = order[start : start + BATCH]
            loss = nn.functional.cross_entropy(model(train_x[where]), train_y[where])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % (NUM_TRAIN // BATCH // 2) == 0:
                cadence.step(model, last=step == steps)
                begun = time.perf_counter()
                record = fb.evaluate(no_grad(model), held_out)
                full_s += time.perf_counter() - begun
                clock.paused_s += time.perf_counter() - begun
                checkpoints.append(copy.deepcopy(model.state_dict()))
                accuracies.append(record["accuracy"].value)
    contenders = [number - 1 for number in cadence.contenders()]
    chosen = contenders[0]
    full = {}
    for number in contenders:
        model.load_state_dict(checkpoints[number])
        full[number] = cadence.final(model)["accuracy"].value
        assert abs(full[number] - accuracies[number]) < 1e-9
        if number == chosen:
            alone = cadence.report()  # the cost with one final evaluation, of the checkpoint of greatest value
    report = cadence.report()
    verdicts = [decision.verdict for decision in cadence.log]
    return {
        "seed": seed,
        "num_checkpoints": len(checkpoints),
        "full_examples": len(checkpoints) * NUM_TEST,
        "cadence_examples": alone["num_predicted"],
        "contender_examples": report["num_predicted"],
        "full_s": full_s,
        "cadence_s": alone["evaluation_s"],
        "contender_s": report["evaluation_s"],
        "train_s": report["train_s"],
        "share": alone["share"],
        "contender_share": report["share"],
        "full_share": full_s / (full_s + report["train_s"]),
        "counts": report["counts"],
        "verdicts": {str(verdict): verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)},
        "chosen": chosen,
        "chosen_of_contenders": max(full, key=lambda number: full[number]),
        "num_contenders": len(full),
        "best": int(np.argmax(accuracies)),
        "accuracy_of_chosen": accuracies[chosen],
        "accuracy_of_best": max(accuracies),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in range(options.seeds):
        row = run(seed, options.epochs)
        rows.append(row)
        print(
            "seed {seed}: {cadence_examples:,} examples against {full_examples:,}, {cadence_s:.2f} s against "
            "{full_s:.2f} s, share {share:.1%} against {full_share:.1%}; chosen {chosen} ({accuracy_of_chosen:.4f}), "
            "best {best} ({accuracy_of_best:.4f}); all {num_contenders} contenders in full: {chosen_of_contenders}, "
            "{contender_examples:,} examples, share {contender_share:.1%}".format(**row),
            flush=True,
        )
    ratio = sum(row["full_examples"] for row in rows) / sum(row["cadence_examples"] for row in rows)
    seconds = sum(row["full_s"] for row in rows) / sum(row["cadence_s"] for row in rows)
    gap = max(row["accuracy_of_best"] - row["accuracy_of_chosen"] for row in rows)
    same = sum(row["chosen"] == row["best"] for row in rows)
    print(
        f"{ratio:.1f}x fewer examples, {seconds:.1f}x fewer seconds; the same checkpoint in {same} of {len(rows)} "
        f"runs, accuracy at most {gap:.4f} below the best's"
    )
    exact_ratio = sum(row["full_examples"] for row in rows) / sum(row["contender_examples"] for row in rows)
    exact = sum(row["chosen_of_contenders"] == row["best"] for row in rows)
    print(
        f"all contenders in full: {exact_ratio:.1f}x fewer examples; the same checkpoint in {exact} of {len(rows)} runs"
    )
    if options.json:
        machine = {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "torch_threads": 1}
        summary = {"examples_ratio": ratio, "seconds_ratio": seconds, "largest_gap": gap, "same_checkpoint": same}
        summary |= {"contenders_examples_ratio": exact_ratio, "contenders_same_checkpoint": exact}
        document = {"benchmark": "cadence in a training run", "machine": machine, **summary, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
