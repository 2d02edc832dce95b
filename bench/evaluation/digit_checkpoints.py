"""Checkpoints of one training run on noisy, shifted digits, made in half a minute: what a paired comparison meets.

`predictions()` trains a small convolutional network on 20,000 augmented digits for 12 epochs and returns its softmax
outputs on 10,000 others at 24 checkpoints.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

EPOCHS, BATCH, CHECKPOINT_EVERY = 12, 128, 78


def _augmented(images, labels, chosen, count, generator):
    picked = generator.choice(chosen, count)
    canvas = np.zeros((count, 12, 12), np.float32)
    offsets = generator.integers(0, 5, (count, 2))
    for i, (x, y) in enumerate(offsets):
        canvas[i, x : x + 8, y : y + 8] = images[picked[i]]
    canvas += generator.normal(0, 0.3, canvas.shape).astype(np.float32)
    return torch.from_numpy(canvas[:, None]), torch.from_numpy(labels[picked])


def predictions(seed=0):
    """Return softmax outputs float32 [checkpoints, 10000, 10] and labels int64 [10000]."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16
    order = generator.permutation(len(images))
    inputs, targets = _augmented(images, labels, order[:1000], 20_000, generator)
    test_inputs, test_targets = _augmented(images, labels, order[1000:], 10_000, generator)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    steps = len(inputs) // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * steps)
    outputs, step = [], 0
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(inputs))[: steps * BATCH].view(steps, BATCH):
            loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step % CHECKPOINT_EVERY == 0:
                with torch.no_grad():
                    outputs.append(model(test_inputs).softmax(1).numpy())
    return np.stack(outputs), test_targets.numpy()


def flip_probability(before, baseline, labels, bins=10):
    """Predict from the last comparison which scores change next: its rate of flips per margin and correctness.

    Args:
        before: float [n, classes], the checkpoint before the baseline.
        baseline: float [n, classes].
        labels: int [n].
        bins: Of the margin between the two largest outputs.
    """
    right = [(outputs.argmax(1) == labels) for outputs in (before, baseline)]
    margins = [np.diff(np.sort(outputs, 1)[:, -2:])[:, 0] for outputs in (before, baseline)]
    edges = np.quantile(margins[0], np.linspace(0, 1, bins + 1))[1:-1]
    cells = [np.searchsorted(edges, margin) + bins * correct for margin, correct in zip(margins, right, strict=True)]
    flipped = np.bincount(cells[0], weights=right[0] != right[1], minlength=2 * bins)
    rates = (flipped + 0.5) / (np.bincount(cells[0], minlength=2 * bins) + 5)
    return rates[cells[1]]
