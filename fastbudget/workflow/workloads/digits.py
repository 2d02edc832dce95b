"""Handwritten digits and a small convolutional network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_model() -> nn.Module:
    """Return a CNN over images [B, 1, 8, 8] with 10 outputs."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def build_data() -> dict[str, Any]:
    """Return loaders over 1,077 / 270 / 450 images, stratified by class with a fixed seed."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    rest, test, rest_labels, test_labels = train_test_split(
        images, labels, test_size=450, stratify=labels, random_state=0
    )
    train, validation, train_labels, validation_labels = train_test_split(
        rest, rest_labels, test_size=270, stratify=rest_labels, random_state=0
    )

    def dataset(x: Any, y: Any) -> TensorDataset:
        return TensorDataset(torch.from_numpy(x), torch.from_numpy(y).long())

    return {
        "train": DataLoader(dataset(train, train_labels), batch_size=64, shuffle=True, drop_last=True),
        "validation": DataLoader(dataset(validation, validation_labels), batch_size=90),
        "test": DataLoader(dataset(test, test_labels), batch_size=90),
    }
