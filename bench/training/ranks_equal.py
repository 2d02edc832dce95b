"""How far a run on two ranks is from the same run on one: parameters and losses, for DDP and FSDP2.

    python bench/training/ranks_equal.py [--steps 60] [--ranks 2] [--json FILE]

A small language model on sequences of 1 to 31 targets, so that micro-batches and ranks weigh differently; AdamW,
clipping, accumulation over two micro-batches, a last batch of each epoch that the ranks can't share evenly. Real
processes over gloo. What a mean of means would give, as without weights, is printed beside it. In float32 the order of
sums alone makes a difference, which AdamW enlarges where a gradient is near 0; float64 shows what is left without it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus

VOCABULARY, LENGTH, SAMPLES, BATCH = 64, 32, 149, 16


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 4 * width), nn.GELU())
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(self.inner(self.norm(x.cumsum(1) / x.shape[1])))


class LanguageModel(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[torch.arange(LENGTH) >= torch.randint(1, LENGTH, (SAMPLES, 1), generator=generator)] = -100
    return TensorDataset(tokens[:, :-1].contiguous(), targets)


def train(run_dir: Path, steps: int, *, dtype: torch.dtype = torch.float32, **options: Any) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs, targets = data()[:8]
    fb.Trainer(
        model=LanguageModel().to(dtype),
        train_data=DataLoader(data(), batch_size=BATCH, shuffle=True),
        budget=fb.Budget(wall_hours=1),
        run_dir=run_dir,
        loss="cross_entropy",
        optimizer_options={"lr": 3e-3},
        evaluate=lambda model: {"loss": float(F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()))},
        metric="loss",
        mode="min",
        max_steps=steps,
        grad_accumulation=2,
        clip_grad_norm=1.0,
        evaluate_every=steps,
        **options,
    ).fit()


def rank_main(rank: int, ranks: int, port: int, run_dir: Path, steps: int, options: dict[str, Any]) -> None:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    train(run_dir, steps, **options)
    os._exit(0)


def on_ranks(ranks: int, run_dir: Path, steps: int, **options: Any) -> None:
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        context.Process(target=rank_main, args=(rank, ranks, port, run_dir, steps, options)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a rank ended with {process.exitcode}")


def state_and_losses(run_dir: Path) -> tuple[dict[str, torch.Tensor], list[float]]:
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    model = fb.CheckpointStore(run_dir / "checkpoints").load().state["model"]
    return model, [line["loss"] for line in lines if "loss" in line]


def distance(first: Path, second: Path) -> dict[str, float]:
    (model, losses), (other, other_losses) = state_and_losses(first), state_and_losses(second)
    return {
        "parameters": max(float((model[name] - other[name]).abs().max()) for name in model),
        "losses": max(abs(a - b) for a, b in zip(losses, other_losses, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        found = {}
        for dtype in (torch.float64, torch.float32):
            kind = str(dtype).removeprefix("torch.")
            alone = directory / kind
            train(alone, arguments.steps, dtype=dtype)
            for name, options in {
                "ddp": {},
                "fsdp2": {"distributed": "fsdp2"},
                "mean of means": {"loss_weight": one},
            }.items():
                run_dir = directory / f"{kind}-{name}"
                on_ranks(arguments.ranks, run_dir, arguments.steps, dtype=dtype, **options)
                found[f"{name}, {kind}"] = distance(alone, run_dir)
    print(f"{arguments.steps} steps on {arguments.ranks} ranks against one: largest difference")
    for name, figures in found.items():
        print(f"  {name:24} parameters {figures['parameters']:.1e}   losses {figures['losses']:.1e}")
    if arguments.json:
        machine = {
            "cpu": cpu_name(),
            "cpus": usable_cpus(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        document = {"machine": machine, "ranks": arguments.ranks, "steps": arguments.steps, "largest_difference": found}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    if max(found[f"{name}, float64"]["parameters"] for name in ("ddp", "fsdp2")) > 1e-6:
        sys.exit("more than 1e-6")


def one(batch: Any) -> float:
    return 1.0


if __name__ == "__main__":
    main()
