"""Batches of sequences of unequal length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from ...core.errors import InvalidInputError


class PaddingCollate:
    """A ``collate_fn`` that pads the sequences of a batch to its longest one.

    With a `ResumableSampler` that was given ``lengths``, the samples of a batch are of similar length and little is
    padded.

    Args:
        padding: Value for each key of a mapping, or for each place of a tuple; one number for all. Targets that are
            padded with -100 don't count in a loss.
        multiple_of: Padded lengths are rounded up to a multiple of it: few distinct shapes for ``torch.compile``, and
            8 for tensor cores.

    A sample is a tensor ``[L, ...]``, a tuple, or a mapping of them; the batch has the same form, ``[B, L, ...]``.
    Values that aren't sequences are stacked as usual. Mappings with ``input_ids`` get an ``attention_mask`` if they
    have none.
    """

    def __init__(self, padding: float | Mapping[str, float] | Sequence[float] = 0, *, multiple_of: int = 1) -> None:
        if multiple_of < 1:
            raise InvalidInputError(f"multiple_of must be at least 1, got {multiple_of}.")
        self.padding, self.multiple_of = padding, multiple_of

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of the samples."""
        first = samples[0]
        if isinstance(first, Mapping):
            batch = {key: self._stack([sample[key] for sample in samples], self._value(key)) for key in first}
            if "input_ids" in batch and "attention_mask" not in batch:
                ones = [torch.ones(len(sample["input_ids"]), dtype=torch.long) for sample in samples]
                batch["attention_mask"] = self._stack(ones, 0)
            return batch
        if isinstance(first, tuple | list):
            columns = zip(*samples, strict=True)
            return tuple(self._stack(list(column), self._value(place)) for place, column in enumerate(columns))
        return self._stack(list(samples), self._value(0))

    def _value(self, key: str | int) -> float:
        if isinstance(self.padding, int | float):
            return self.padding
        try:
            return self.padding[key]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            raise InvalidInputError(f"padding has no value for {key!r}; got {self.padding!r}.") from None

    def _stack(self, values: list[Any], padding: float) -> Any:
        if not isinstance(values[0], torch.Tensor) or values[0].ndim == 0:
            return default_collate(values)
        longest = max(len(value) for value in values)
        longest = -(-longest // self.multiple_of) * self.multiple_of
        batch = values[0].new_full((len(values), longest, *values[0].shape[1:]), padding)
        for row, value in zip(batch, values, strict=True):
            row[: len(value)] = value
        return batch
