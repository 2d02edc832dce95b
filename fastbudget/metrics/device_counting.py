"""Counting of labels that lie on an accelerator, there: only the counts travel."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import InvalidInputError
from ._native import Counts


def on_accelerator(values: Any) -> bool:
    """Whether this is a torch tensor of another device than the CPU."""
    return hasattr(values, "detach") and values.device.type != "cpu"


def count_on_device(predicted: Any, reference: Any, num_classes: int | None, most_classes: int = 4096) -> Counts:
    """Return the confusion matrix int64 [C, C], row = reference, of label tensors [n] on one device.

    Args:
        predicted: Integer tensor [n].
        reference: Integer tensor [n] on the same device.
        num_classes: C; None: the largest label + 1.
        most_classes: Above that, an error.
    """
    import torch

    if len(predicted) != len(reference):
        raise InvalidInputError(
            f"predictions and references must have the same length, got {len(predicted)} and {len(reference)}."
        )
    if len(reference) == 0:
        return np.zeros((num_classes or 0, num_classes or 0), np.int64)
    for name, labels in (("predictions", predicted), ("references", reference)):
        if labels.is_floating_point() or labels.is_complex():
            raise InvalidInputError(f"{name} must hold integer class labels, got dtype {labels.dtype}.")
    pair = torch.stack([predicted.long(), reference.long()])
    smallest, largest = (int(end) for end in torch.aminmax(pair))
    classes = largest + 1 if num_classes is None else num_classes
    if smallest < 0 or largest >= classes:
        row, index = (int(place) for place in ((pair < 0) | (pair >= classes)).nonzero()[0])
        raise InvalidInputError(
            f"Class labels must be in [0, {classes}): {('predictions', 'references')[row]}[{index}] is "
            f"{int(pair[row, index])}. Check num_classes and the data."
        )
    if classes > most_classes:
        raise InvalidInputError(f"A label is {largest}; a confusion matrix is kept for up to {most_classes} classes.")
    cells = torch.bincount(pair[1] * classes + pair[0], minlength=classes * classes)
    return np.asarray(cells.view(classes, classes).cpu().numpy())
