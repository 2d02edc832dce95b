"""Trains one trunk that is cooled down at 25, 50, 75 and 100% of a budget, beside a linear schedule tuned for each.

    python bench/training/annealing.py [--steps 2000] [--seeds 3] [--json FILE]

The text is that of `fastbudget run pydocs`, the model a smaller GPT of the same kind. The linear schedule's peak rate
is chosen for each budget by the validation loss, in steps of sqrt(2); the trunk's once for all budgets, in steps of 2.
Either grid grows until the best rate lies inside it. What is compared is the loss on the test topics, which chooses
nothing. Budgets are counted in steps, so a busy machine changes nothing but the duration. Finished runs are kept in the
file given by --json, and not made again.

The trunk's losses may be no more than 0.5% above the tuned linear schedule's at any budget, else exit code 1.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from torch.nn import functional as F

from fastbudget.hardware import cpu_name, usable_cpus
from fastbudget.training import LearningRateSchedule
from fastbudget.workflow.workloads.pydocs import ByteGPT, build_data

SHARES = (0.25, 0.5, 0.75, 1.0)
FIRST_PEAKS = (0.002, 0.004, 0.008)
WARMUP, BATCH, WIDTH, LAYERS, WEIGHT_DECAY, CLIP = 50, 32, 64, 2, 0.1, 1.0
CONTEXT = 32  # longer ones leave the loss on a plateau, whose end comes by chance and hides the schedule's part
MOST_WORSE = 0.005
LINEAR = LearningRateSchedule(shape="linear", warmup_steps=WARMUP)
TRUNK = LearningRateSchedule(shape="wsd", warmup_steps=WARMUP)


class Run:
    """A model in training; batches depend on the seed and the step alone."""

    def __init__(self, data, seed, peak):
        torch.manual_seed(seed)
        self.model = ByteGPT(WIDTH, LAYERS, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=peak, weight_decay=WEIGHT_DECAY)
        self.data, self.seed, self.peak, self.step = data, seed, peak, 0

    def train_until(self, last, schedule, horizon):
        for step in range(self.step, last):
            for group in self.optimizer.param_groups:
                group["lr"] = self.peak * schedule.factor(step, step / horizon)
            inputs, targets = self.batch(step)
            loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
        self.step = last
        return self

    def batch(self, step):
        text = self.data["text"]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(len(text) - CONTEXT, (BATCH,), generator=generator)
        windows = text[starts[:, None] + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]

    def losses(self):
        """Mean loss of a byte (nats) on the validation and the test topics."""
        found = {}
        with torch.no_grad():
            for split in ("validation", "test"):
                total = scored = 0
                for inputs, targets in self.data[split]:
                    total += F.cross_entropy(
                        self.model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
                    ).item()
                    scored += (targets != -100).sum().item()
                found[split] = total / scored
        return found


def linear_losses(data, seed, peak, budget):
    return Run(data, seed, peak).train_until(budget, LINEAR, budget).losses()


def trunk_losses(data, seed, peak, budgets):
    """Losses after cooling down from one trunk, by budget."""
    trunk, losses = Run(data, seed, peak), {}
    for budget in budgets:
        trunk.train_until(round(TRUNK.decay_starts * budget), TRUNK, budget)
        losses[str(budget)] = copy.deepcopy(trunk).train_until(budget, TRUNK, budget).losses()
    return losses


def cut(batch):
    return tuple(part.reshape(-1, CONTEXT) for part in batch)


class Kept:
    """Runs already made, by kind, peak rate, seed and budget."""

    def __init__(self, path, settings):
        self.path, self.document = path, {"settings": settings, "runs": {}}
        if path is not None and path.exists():
            before = json.loads(path.read_text())
            if before.get("settings") == settings:
                self.document = before

    def get(self, key, make):
        if key not in self.document["runs"]:
            began = time.monotonic()
            self.document["runs"][key] = make()
            print(f"{key}: {self.document['runs'][key]} in {time.monotonic() - began:.0f} s", flush=True)
            self.save()
        return self.document["runs"][key]

    def save(self):
        if self.path is not None:
            self.path.write_text(json.dumps(self.document, indent=1) + "\n")


def best_peak(validation_of, *, refine=False):
    """Return the rate with the least mean validation loss; the grid grows until it isn't at an end.

    ``refine``: then also tries the rates half-way to the neighbors.
    """
    means = {peak: validation_of(peak) for peak in FIRST_PEAKS}
    while True:
        best = min(means, key=means.get)
        wanted = best / 2 if best == min(means) else best * 2 if best == max(means) else None
        if wanted is None:
            break
        means[wanted] = validation_of(wanted)
    if refine:
        means |= {peak: validation_of(peak) for peak in (best / 2**0.5, best * 2**0.5)}
    return min(means, key=means.get)


def compare(kept, data, budgets, seeds):
    def linear(peak, seed, budget):
        return kept.get(f"linear peak {peak} seed {seed} budget {budget}",
                        lambda: linear_losses(data, seed, peak, budget))  # fmt: skip

    def trunk(peak, seed):
        return kept.get(f"trunk peak {peak} seed {seed}", lambda: trunk_losses(data, seed, peak, budgets))

    def trunk_validation(peak):
        return statistics.mean(trunk(peak, seed)[str(n)]["validation"] for seed in seeds for n in budgets)

    trunk_peak = best_peak(trunk_validation)
    rows = []
    for budget in budgets:
        peak = best_peak(
            lambda peak, budget=budget: statistics.mean(linear(peak, seed, budget)["validation"] for seed in seeds),
            refine=True,
        )
        differences = [
            trunk(trunk_peak, seed)[str(budget)]["test"] / linear(peak, seed, budget)["test"] - 1 for seed in seeds
        ]
        rows.append({
            "budget_steps": budget,
            "linear_peak": peak,
            "trunk_peak": trunk_peak,
            "linear_test_loss": statistics.mean(linear(peak, seed, budget)["test"] for seed in seeds),
            "trunk_test_loss": statistics.mean(trunk(trunk_peak, seed)[str(budget)]["test"] for seed in seeds),
            "trunk_worse_by": statistics.mean(differences),
            "trunk_worse_by_seed": differences,
        })  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="of the whole budget")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = build_data()
    text = data["train"].text
    data = {"text": text} | {split: [cut(batch) for batch in data[split]] for split in ("validation", "test")}
    budgets = [round(share * options.steps) for share in SHARES]
    settings = {
        "steps": options.steps, "seeds": options.seeds, "batch": BATCH, "context": CONTEXT, "width": WIDTH,
        "layers": LAYERS, "warmup_steps": WARMUP, "weight_decay": WEIGHT_DECAY, "clip_grad_norm": CLIP,
        "cool_down": TRUNK.cool_down_share,
    }  # fmt: skip
    kept = Kept(options.json, settings)
    rows = compare(kept, data, budgets, range(options.seeds))
    stable = TRUNK.decay_starts
    trunk_steps = round(stable * budgets[-1] + sum((1 - stable) * budget for budget in budgets))
    steps = {"trunk_and_cool_downs": trunk_steps, "linear": sum(budgets), "ratio": trunk_steps / sum(budgets)}
    for row in rows:
        print(
            f"{row['budget_steps']:5} steps  linear {row['linear_test_loss']:.4f} (peak {row['linear_peak']})  "
            f"trunk {row['trunk_test_loss']:.4f} (peak {row['trunk_peak']})  worse by {row['trunk_worse_by']:+.2%}"
        )
    print(f"steps: {trunk_steps} against {sum(budgets)}, {steps['ratio']:.0%}")
    kept.document = {
        "benchmark": "one trunk, several budgets",
        "rows": rows,
        "steps_trained": steps,
        "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
        "versions": {name: version(name) for name in ("fastbudget", "numpy", "torch")},
        **kept.document,
    }
    kept.save()
    if any(row["trunk_worse_by"] > MOST_WORSE for row in rows):
        sys.exit(f"the trunk is more than {MOST_WORSE:.1%} worse at some budget")


if __name__ == "__main__":
    main()
