"""Batches of 32 x 1024 tokens from a uint16 file in the page cache, against nanoGPT's get_batch and DataLoader.

    python bench/training/token_reading.py [--quick] [--json FILE]

All read int64 inputs and targets in random order. Rates are tokens of inputs per second on the clock, and per second of
CPU time (a reading thread's included) where no other processes work; on a busy machine only the second says much.
Rounds are interleaved, the median counts. Exits with 1 below the promised rate per core, after one retry.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fastbudget.hardware import cpu_name, usable_cpus
from fastbudget.training import ResumableSampler, TokenDataset

TOKENS = 100_000_000
BATCH, SEQ_LEN, VOCAB = 32, 1024, 50_257
FLOOR_PER_CORE = 600e6


def nanogpt(path):
    """get_batch of karpathy/nanoGPT's train.py, on the CPU."""
    while True:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - SEQ_LEN, (BATCH,))
        x = torch.stack([torch.from_numpy((data[i : i + SEQ_LEN]).astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + SEQ_LEN]).astype(np.int64)) for i in ix])
        yield x, y


class MappedWindows(Dataset):
    """The map-style data set people write for DataLoader; with ``__getitems__`` a batch at a time."""

    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint16, mode="r")

    def __len__(self):
        return (len(self.data) - 1) // SEQ_LEN

    def __getitem__(self, index):
        window = torch.from_numpy(self.data[index * SEQ_LEN : (index + 1) * SEQ_LEN + 1].astype(np.int64))
        return window[:-1], window[1:]


class BatchedWindows(MappedWindows):
    def __getitems__(self, indices):
        windows = np.empty((len(indices), SEQ_LEN + 1), np.int64)
        for row, index in zip(windows, indices, strict=True):
            row[:] = self.data[index * SEQ_LEN : (index + 1) * SEQ_LEN + 1]
        windows = torch.from_numpy(windows)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def loader(kind, path, workers):
    extra = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    collate = (lambda batch: batch) if kind is BatchedWindows else None
    return iter(DataLoader(kind(path), BATCH, shuffle=True, num_workers=workers, collate_fn=collate, **extra))


def readers(path):
    data = TokenDataset(path, seq_len=SEQ_LEN, vocab_size=VOCAB)
    return {
        "fastbudget": data.batches(BATCH),
        "fastbudget, no prefetch": data.batches(BATCH, prefetch=0),
        "nanoGPT get_batch": nanogpt(path),
        **{f"DataLoader, {workers} workers": loader(MappedWindows, path, workers) for workers in (0, 1, 2)},
        **{f"DataLoader by batches, {workers} workers": loader(BatchedWindows, path, workers) for workers in (0, 1, 2)},
    }


def rates(batches, count):
    for _ in islice(batches, max(2, count // 10)):
        pass
    cpu, wall = time.process_time(), time.perf_counter()
    for inputs, targets in islice(batches, count):
        assert inputs.shape == targets.shape == (BATCH, SEQ_LEN)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return count * BATCH * SEQ_LEN / wall, count * BATCH * SEQ_LEN / cpu


def shuffled_indices_per_core_s(rounds):
    """How fast the order of a billion samples is computed, far from its start."""
    sampler = ResumableSampler(10**9, seed=1)
    found = []
    for _ in range(rounds):
        cpu = time.process_time()
        sampler.global_order(900_000_000, 900_100_000)
        found.append(100_000 / (time.process_time() - cpu))
    return statistics.median(found)


def measure(path, rounds):
    all_readers = readers(path)
    results = {name: {"wall": [], "cpu": []} for name in all_readers}
    for _ in range(rounds):
        for name, batches in all_readers.items():
            wall, cpu = rates(batches, 2000 if name.startswith("fastbudget") else 150)
            results[name]["wall"].append(wall)
            results[name]["cpu"].append(cpu)
    rows = {}
    for name, found in results.items():
        ratios = {
            clock: statistics.median(a / b for a, b in zip(results["fastbudget"][clock], found[clock], strict=True))
            for clock in ("wall", "cpu")
        }
        # Workers are other processes, which this process's CPU time leaves out.
        alone = not name.endswith(("1 workers", "2 workers"))
        rows[name] = {
            "tokens_per_s": statistics.median(found["wall"]),
            "tokens_per_core_s": statistics.median(found["cpu"]) if alone else None,
            "fastbudget_is_faster_by": ratios["wall"],
            "fastbudget_is_faster_per_core_by": ratios["cpu"] if alone else None,
        }
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 3 if options.quick else 9
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tokens.bin"
        np.random.default_rng(0).integers(0, VOCAB, TOKENS, dtype=np.uint16).tofile(path)
        rows = measure(path, rounds)
        if rows["fastbudget"]["tokens_per_core_s"] < FLOOR_PER_CORE:
            rows = measure(path, rounds)
        load = os.getloadavg()[0]
    for name, row in rows.items():
        core = row["tokens_per_core_s"]
        per_core = f"{core / 1e6:8.1f} M per core {row['fastbudget_is_faster_per_core_by']:6.1f}x" if core else ""
        print(
            f"{name:34} {row['tokens_per_s'] / 1e6:8.1f} M tokens/s  {row['fastbudget_is_faster_by']:6.1f}x {per_core}"
        )
    indices = shuffled_indices_per_core_s(rounds)
    print(f"{'shuffled order of 10^9 samples':34} {indices / 1e6:8.1f} M indices/s per core")
    if options.json:
        document = {
            "benchmark": "reading token batches",
            "batch": [BATCH, SEQ_LEN],
            "file": {"tokens": TOKENS, "dtype": "uint16", "where": "page cache"},
            "rounds": rounds,
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system(), "load": load},
            "versions": {name: version(name) for name in ("fastbudget", "numpy", "torch")},
            "shuffled_indices_per_core_s": indices,
            "rows": rows,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if rows["fastbudget"]["tokens_per_core_s"] < FLOOR_PER_CORE:
        sys.exit(f"below {FLOOR_PER_CORE / 1e6:.0f} million tokens/s per core")


if __name__ == "__main__":
    main()
