"""Stops a training run at every step, goes on in a new process, and compares with the uninterrupted run bit for bit.

    python bench/reliability/exact_resume.py [--steps 24] [--quick] [--json FILE]

Each kind of data is tried with each stop: the sequence of batches, the losses, and the whole last checkpoint (weights,
optimizer, data position, generators, early stopping) must be equal. Dropout and augmentation draw from the generators
of Python, NumPy and torch. Each session is a forked process; the second starts with other random states and other
weights. Exits with 1 if any differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import fastbudget as fb
from fastbudget.checkpoint import CheckpointStore
from fastbudget.hardware import cpu_name, usable_cpus
from fastbudget.training import EarlyStopping, ResumableSampler, SeededDataset, TokenDataset

SAMPLES, BATCH = 50, 8  # seven batches an epoch


class Noisy(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(6) + np.random.normal() * 0.01 + random.gauss(0, 0.01)
        return torch.full((6,), index / SAMPLES) + noise, torch.tensor(index % 2)


def plain(workers):
    return DataLoader(Noisy(), batch_size=BATCH, shuffle=True, num_workers=workers)


def resumable(workers):
    sampler = ResumableSampler(SAMPLES, batch_size=BATCH, seed=3)
    return DataLoader(
        SeededDataset(Noisy()), batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )


def tokens(path):
    if not path.exists():
        np.random.default_rng(0).integers(0, 12, 1001).astype(np.uint16).tofile(path)
    return TokenDataset(path, seq_len=10, seed=4).batches(BATCH)


KINDS = {
    **{f"DataLoader, {workers} workers": lambda _, workers=workers: plain(workers) for workers in (0, 1, 2)},
    **{f"ResumableSampler, {workers} workers": lambda _, workers=workers: resumable(workers) for workers in (0, 1, 2)},
    "TokenDataset": tokens,
}


class TokenModel(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Embedding(12, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 12))


class RowModel(torch.nn.Sequential):
    def __init__(self):
        super().__init__(
            torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 2),
        )  # fmt: skip


def session(kind, run_dir, steps, stop, resume, batches_file):
    """Train until ``stop`` or the end; append a hash of each batch to a file."""
    torch.manual_seed(11)
    model = TokenModel() if kind == "TokenDataset" else RowModel()
    seed = 99 if resume else 1
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
    if resume:
        torch.nn.init.normal_(next(model.parameters()))
    with batches_file.open("a") as log:

        def loss(outputs, batch):
            log.write(hashlib.sha256(b"".join(part.numpy().tobytes() for part in batch)).hexdigest() + "\n")
            return torch.nn.functional.cross_entropy(outputs.flatten(0, -2), batch[1].flatten())

        def evaluate(model):
            random.random(), np.random.normal(), torch.rand(())
            return {"score": float(sum(parameter.sum() for parameter in model.parameters()))}

        def sink(record):
            if "loss" in record and record["step"] == stop:
                os.kill(os.getpid(), signal.SIGTERM)

        fb.Trainer(
            model=model, train_data=KINDS[kind](run_dir.parent / "tokens.bin"), budget=fb.Budget(wall_hours=10),
            run_dir=run_dir, evaluate=evaluate, metric="score", loss=loss, optimizer_options={"lr": 0.01},
            max_steps=steps, evaluate_every=5, clip_grad_norm=1.0, sinks=[sink],
            early_stopping=EarlyStopping(mode="max", patience=99),
        ).fit(resume=resume)  # fmt: skip


def in_child(*arguments):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            session(*arguments)
            code = 0
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"a session failed: {arguments}")


def fingerprint(value):
    """A text that is equal for equal states only."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{fingerprint(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(fingerprint, value)) + "]"
    return repr(value)


def outcome(run_dir, batches_file):
    state = CheckpointStore(run_dir / "checkpoints").load().state
    losses = [line for line in (run_dir / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    return fingerprint(state), losses, batches_file.read_text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=24, help="steps of the uninterrupted run")
    parser.add_argument("--quick", action="store_true", help="stop at every fifth step only")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, begin = {}, time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        for kind in KINDS:
            base = Path(directory) / hashlib.sha256(kind.encode()).hexdigest()[:8]
            base.mkdir()
            in_child(kind, base / "alone", options.steps, None, False, base / "alone.txt")
            expected = outcome(base / "alone", base / "alone.txt")
            stops = range(1, options.steps, 5 if options.quick else 1)
            different = []
            for stop in stops:
                run_dir, batches = base / str(stop), base / f"{stop}.txt"
                in_child(kind, run_dir, options.steps, stop, False, batches)
                in_child(kind, run_dir, options.steps, None, True, batches)
                if outcome(run_dir, batches) != expected:
                    different.append(stop)
            rows[kind] = {"stops": len(stops), "different": different}
            print(f"{kind:30} {len(stops)} stops, {len(different)} resumed runs differ {different or ''}", flush=True)
    if options.json:
        document = {
            "benchmark": "exact resume",
            "steps": options.steps,
            "seconds": time.monotonic() - begin,
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "system": platform.system()},
            "versions": {name: version(name) for name in ("fastbudget", "numpy", "torch")},
            "rows": rows,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if any(row["different"] for row in rows.values()):
        sys.exit("a resumed run differs from the uninterrupted one")


if __name__ == "__main__":
    main()
