"""Augmentation that doesn't depend on workers."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from ...core.errors import InvalidInputError
from ..generators import sample_generators
from .resumable_sampler import SampleIndex


class SeededDataset(Dataset[Any]):
    """A data set whose random augmentation is drawn from a key of its own for each sample and epoch.

    While a sample is made, the generators of Python, NumPy and torch (CPU) are seeded from (seed, epoch, sample
    number): the sample is the same in any worker, with any number of them, after any interruption. It takes some
    ten microseconds a sample.

    Args:
        dataset: Map-style; its ``__getitem__`` may use the global generators.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if not isinstance(index, SampleIndex):
            raise InvalidInputError(
                f"SeededDataset needs the keys that a ResumableSampler gives, got {index!r} of {type(index).__name__}; "
                "use DataLoader(…, batch_sampler=ResumableSampler(len(data), batch_size=…))."
            )
        with sample_generators(*index.key):
            return self.dataset[int(index)]
