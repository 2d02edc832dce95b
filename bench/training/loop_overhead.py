"""What a training loop costs per step beyond a bare PyTorch loop, on a model so small that little else is left.

    python bench/training/loop_overhead.py [--steps 4000] [--rounds 7] [--json FILE]

The bare loop, `fb.Trainer`, `fb.BudgetGuard.steps` around a loop of one's own, Lightning and Hugging Face Trainer take
the same steps from the same weights over the same batches; each round runs all of them, one thread. The clock runs
from one batch handed out by the data to another, so setting up and evaluating are left out. A library's overhead is
the median over rounds of its time per step less the bare loop's in the same round: once by the wall clock and once by
the thread's CPU time, which other processes disturb less (they still take the caches).
``overhead_least_cpu_us`` compares the fastest rounds of both, the best guess on a machine that isn't idle.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import fastbudget as fb
from fastbudget.hardware import cpu_name, usable_cpus

WARM_UP = 200
BATCHES_PER_EPOCH = 1000
RATE = 1e-3


class Tiny(nn.Module):
    """A model that takes a mapping and returns its loss, which all the libraries understand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class TimedBatches:
    """Batches in memory; notes both clocks when the first batch after the warm-up and the last one are asked for."""

    def __init__(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(1)
        count = min(BATCHES_PER_EPOCH, WARM_UP + steps)
        inputs = torch.randn(count, 8, 16, generator=generator)
        labels = torch.randint(4, (count, 8), generator=generator)
        self._batches = [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]
        self._steps, self._given = steps, 0
        self._begun = self._ended = (0.0, 0.0)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for batch in self._batches:
            if self._given == WARM_UP:
                self._begun = time.perf_counter(), time.thread_time()
            elif self._given == WARM_UP + self._steps:
                self._ended = time.perf_counter(), time.thread_time()
            self._given += 1
            yield batch

    def seconds_per_step(self) -> tuple[float, float]:
        """Return wall and CPU seconds."""
        assert self._given > WARM_UP + self._steps
        return tuple((end - begin) / self._steps for begin, end in zip(self._begun, self._ended, strict=True))


def total_steps(steps: int) -> int:
    return WARM_UP + steps + 1


def endless(batches: TimedBatches) -> Iterator[dict[str, torch.Tensor]]:
    while True:
        yield from batches


def bare(batches: TimedBatches, steps: int, directory: str) -> nn.Module:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    source = endless(batches)
    for _ in range(total_steps(steps)):
        batch = next(source)
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model


def trainer(batches: TimedBatches, steps: int, directory: str, **options: Any) -> nn.Module:
    model = Tiny()
    fb.Trainer(
        model=model,
        optimizer="sgd",
        optimizer_options={"lr": RATE},
        schedule=fb.training.LearningRateSchedule(shape="constant"),
        train_data=batches,
        budget=fb.Budget(wall_hours=1),
        run_dir=directory,
        evaluate=lambda model: {"score": 0.0},
        metric="score",
        max_steps=total_steps(steps),
        **{"evaluate_every": 10**9, **options},
    ).fit()
    return model


def own_loop(batches: TimedBatches, steps: int, directory: str) -> nn.Module:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    taken = 0
    with fb.BudgetGuard(fb.Budget(wall_hours=1), run_dir=directory) as guard:
        for batch in guard.steps(endless(batches)):
            loss = model(**batch)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            guard.log(loss=loss.item())
            taken += 1
            if taken == total_steps(steps):
                break
    return model


def lightning_trainer(batches: TimedBatches, steps: int, directory: str) -> nn.Module:
    """Lightning with a log of the loss, and without checkpoints, progress bar and summary."""
    from lightning.pytorch.loggers import CSVLogger

    return _lightning(
        batches, steps, logger=CSVLogger(directory), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip


def bare_lightning_trainer(batches: TimedBatches, steps: int, directory: str) -> nn.Module:
    return _lightning(batches, steps, logger=False, barebones=True)


def _lightning(batches: TimedBatches, steps: int, **options: Any) -> nn.Module:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Tiny()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss = self.model(**batch)["loss"]
            if options["logger"]:
                self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    module = Module()
    pl.Trainer(max_steps=total_steps(steps), max_epochs=-1, accelerator="cpu", devices=1, **options).fit(
        module, batches
    )
    return module.model


def hugging_face_trainer(batches: TimedBatches, steps: int, directory: str) -> nn.Module:
    import transformers

    class Given(transformers.Trainer):
        def get_train_dataloader(self) -> TimedBatches:
            return batches

    model = Tiny()
    arguments = transformers.TrainingArguments(
        output_dir=directory, max_steps=total_steps(steps), learning_rate=RATE, lr_scheduler_type="constant",
        max_grad_norm=0.0, save_strategy="no", logging_strategy="steps", logging_steps=500, report_to="none",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    with Path(os.devnull).open("w") as nowhere:
        shown, sys.stdout = sys.stdout, nowhere  # it prints each log
        try:
            Given(model=model, args=arguments, optimizers=(optimizer, scheduler)).train()
        finally:
            sys.stdout = shown
    return model


CONTENDERS: dict[str, Callable[..., nn.Module]] = {
    "bare loop": bare,
    "fb.Trainer": trainer,
    "fb.BudgetGuard.steps": own_loop,
    "Lightning": lightning_trainer,
    "Lightning, barebones": bare_lightning_trainer,
    "Hugging Face Trainer": hugging_face_trainer,
}


def measure(name: str, steps: int) -> tuple[tuple[float, float], torch.Tensor]:
    """Return wall and CPU seconds per step, and the weights in the end."""
    batches = TimedBatches(steps)
    with tempfile.TemporaryDirectory() as directory:
        model = CONTENDERS[name](batches, steps, directory)
    return batches.seconds_per_step(), torch.cat([value.detach().flatten() for value in model.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), help="contenders, beside the bare loop")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # Lightning's announcements
    warnings.simplefilter("ignore")
    load = os.getloadavg()[0]
    names = ["bare loop", *(name for name in options.only if name != "bare loop")]
    rounds: list[dict[str, tuple[float, float]]] = []
    ends: dict[str, torch.Tensor] = {}
    for _ in range(options.rounds):
        times = {}
        for name in names:
            times[name], ends[name] = measure(name, options.steps)
        rounds.append(times)
    rows = {}
    for name in names:
        clocks = [[1e6 * (row[name][clock] - row["bare loop"][clock]) for row in rounds] for clock in (0, 1)]
        rows[name] = {
            "wall_us_per_step": 1e6 * statistics.median(row[name][0] for row in rounds),
            "cpu_us_per_step": 1e6 * statistics.median(row[name][1] for row in rounds),
            "overhead_wall_us": statistics.median(clocks[0]),
            "overhead_cpu_us": statistics.median(clocks[1]),
            "overhead_least_cpu_us": 1e6
            * (min(row[name][1] for row in rounds) - min(row["bare loop"][1] for row in rounds)),
            "overhead_wall_us_by_round": clocks[0],
            "overhead_cpu_us_by_round": clocks[1],
            "same_weights_as_bare_loop": bool(torch.equal(ends[name], ends["bare loop"])),
        }
        print(
            f"{name:22} {rows[name]['wall_us_per_step']:8.1f} us/step   over the bare loop: "
            f"{rows[name]['overhead_wall_us']:8.1f} us wall, {rows[name]['overhead_cpu_us']:8.1f} us CPU, "
            f"{rows[name]['overhead_least_cpu_us']:8.1f} us least   "
            f"{'same' if rows[name]['same_weights_as_bare_loop'] else 'other'} weights"
        )
    if options.json:
        document = {
            "benchmark": "training loop overhead",
            "machine": {"cpu": cpu_name(), "usable_cpus": usable_cpus(), "load_before": load, "threads": 1},
            "python": platform.python_version(),
            "packages": {name: version(name) for name in ("torch", "lightning", "transformers", "accelerate")},
            "steps": options.steps,
            "rounds": options.rounds,
            "results": rows,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
