"""How much faster is the evaluation of a frozen backbone from kept activations, and is it the same bit for bit?

    python bench/evaluation/frozen_backbone.py [--examples 1024] [--pairs 5] [--json FILE]

A convolutional backbone stays the same while its head changes. Each pair evaluates the model as it is and then through
`FrozenPrefix`, once the activations are kept. The first pass, which computes, checks and keeps them, is timed apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from fastbudget.evaluation import ActivationCache, FrozenPrefix
from fastbudget.hardware import cpu_name, usable_cpus


def build_model(depth=6, width=64):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 10)).eval()
    for layer in model[:-3]:
        layer.requires_grad_(False)
    return model


def change_head(model):
    with torch.no_grad():
        model[-3].weight.add_(torch.randn_like(model[-3].weight) * 0.01)
        model[-1].weight.add_(torch.randn_like(model[-1].weight) * 0.01)


def evaluate(predict, batches):
    begun = time.perf_counter()
    with torch.no_grad():
        outputs = [predict(batch) for batch in batches]
    return time.perf_counter() - begun, torch.cat(outputs)


def measure(cache, model, batches, num_pairs):
    prefix = FrozenPrefix(model, cache=cache)
    first_s, _ = evaluate(prefix.predictor(), batches)
    pairs, exact = [], True
    for _ in range(num_pairs):
        change_head(model)
        whole_s, expected = evaluate(model, batches)
        begun = time.perf_counter()
        predict = prefix.predictor()  # hashes the weights: part of the price
        hashing_s = time.perf_counter() - begun
        kept_s, found = evaluate(predict, batches)
        exact &= torch.equal(expected.view(torch.int32), found.view(torch.int32))
        pairs.append(whole_s / (hashing_s + kept_s))
    return {
        "speedup": statistics.median(pairs),
        "pairs": pairs,
        "first_pass_over_plain": first_s / whole_s,
        "equal_bit_for_bit": exact,
        "cache_bytes": cache.bytes_used,
        "frozen_blocks": len(prefix.frozen_blocks),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = build_model()
    batches = list(torch.randn(options.examples, 3, 48, 48).split(64))
    result = {
        "benchmark": "frozen backbone",
        "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "torch_threads": 1},
        "num_examples": options.examples,
        "memory": measure(ActivationCache(), model, batches, options.pairs),
    }
    with tempfile.TemporaryDirectory() as directory:
        result["file"] = measure(ActivationCache(directory=directory), model, batches, options.pairs)
    for where in ("memory", "file"):
        row = result[where]
        print(
            f"{where:6}: {row['speedup']:.1f}x as fast (median of {len(row['pairs'])} pairs), bit for bit equal: "
            f"{row['equal_bit_for_bit']}; first pass {row['first_pass_over_plain']:.2f}x a plain one"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
