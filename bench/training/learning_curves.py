"""Real learning curves of small trainings, each with hyper-parameters drawn at random.

Digits: a multilayer perceptron. Pydocs: a small GPT. The rate falls linearly to 0 in each, as in `fastbudget run`.
"""

from __future__ import annotations

import itertools
import math
import random

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from fastbudget.training import LearningRateSchedule
from fastbudget.workflow.workloads.pydocs import ByteGPT, build_data

EVALUATIONS = 30
_SCHEDULE = LearningRateSchedule(warmup_steps=10)
_CONTEXT = 32


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def _train(model, settings, batch_of, evaluate, steps):
    """Return the validation loss after each of `EVALUATIONS` equal parts of the run."""
    kinds = {"adamw": torch.optim.AdamW, "sgd": lambda p, **o: torch.optim.SGD(p, momentum=0.9, **o)}
    optimizer = kinds[settings["optimizer"]](
        model.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"]
    )
    curve = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = settings["lr"] * _SCHEDULE.factor(step, step / steps)
        inputs, targets = batch_of(step)
        loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) * EVALUATIONS % steps < EVALUATIONS:
            model.eval()
            with torch.no_grad():
                curve.append(evaluate(model))
            model.train()
    return curve


def digits_curve(number: int) -> dict[str, object]:
    """Train one perceptron of some hundred optimizer steps."""
    draw = random.Random(f"digits {number}")
    settings = {
        "optimizer": draw.choice(["adamw", "sgd"]), "lr": _log_uniform(draw, 1e-4, 1e-1),
        "weight_decay": _log_uniform(draw, 1e-5, 1e-1), "width": draw.choice([16, 32, 64, 128]),
        "layers": draw.choice([1, 2, 3]), "dropout": draw.uniform(0, 0.5), "batch": draw.choice([16, 32, 64]),
    }  # fmt: skip
    inputs, targets = (torch.tensor(part) for part in load_digits(return_X_y=True))
    inputs = inputs.float() / 16
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train, held_out = order[:1000], order[1000:]
    torch.manual_seed(number)
    sizes = [64, *[settings["width"]] * settings["layers"]]
    parts = [
        part
        for a, b in itertools.pairwise(sizes)
        for part in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(settings["dropout"]))
    ]
    model = nn.Sequential(*parts, nn.Linear(sizes[-1], 10))

    def batch_of(step):
        rows = train[torch.randint(len(train), (settings["batch"],), generator=torch.Generator().manual_seed(step))]
        return inputs[rows], targets[rows]

    def evaluate(model):
        return F.cross_entropy(model(inputs[held_out]), targets[held_out]).item()

    return {"settings": settings, "losses": _train(model, settings, batch_of, evaluate, steps=600)}


def pydocs_curve(number: int, data: dict[str, object]) -> dict[str, object]:
    """Train one small GPT for 300 steps; ``data`` is the workload's."""
    draw = random.Random(f"pydocs {number}")
    settings = {
        "optimizer": "adamw", "lr": _log_uniform(draw, 2e-4, 5e-2), "weight_decay": _log_uniform(draw, 1e-3, 0.5),
        "width": draw.choice([32, 48, 64]), "layers": draw.choice([1, 2, 3]), "batch": draw.choice([8, 16, 32]),
    }  # fmt: skip
    text = data["train"].text
    torch.manual_seed(number)
    model = ByteGPT(settings["width"], settings["layers"], 4)

    def batch_of(step):
        starts = torch.randint(
            len(text) - _CONTEXT, (settings["batch"],), generator=torch.Generator().manual_seed(step)
        )
        windows = text[starts[:, None] + torch.arange(_CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]

    scored = [tuple(part.reshape(-1, _CONTEXT) for part in batch) for batch in data["validation"][:3]]

    def evaluate(model):
        losses = [F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100) for x, y in scored]
        return (sum(losses) / len(losses)).item()

    return {"settings": settings, "losses": _train(model, settings, batch_of, evaluate, steps=300)}


def collect(kind: str, count: int) -> list[dict[str, object]]:
    """Return so many curves of one kind: ``"digits"`` or ``"pydocs"``."""
    if kind == "digits":
        return [digits_curve(number) for number in range(count)]
    data = build_data()
    return [pydocs_curve(number, data) for number in range(count)]
