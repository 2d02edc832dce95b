"""Language-model data: a file of token ids, read as shuffled windows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ...core.errors import InvalidInputError, one_of
from . import _native
from .memmap_dataset import whole_items
from .resumable_sampler import check_ranks, check_same_order, part_size

TOKEN_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")

Batch = tuple[torch.Tensor, torch.Tensor]


class TokenDataset(Dataset[Batch]):
    """A binary file of token ids, cut into windows of ``seq_len`` tokens; window i starts at token ``i * seq_len``.

    A window's targets are its inputs one token later, so each token of the file is a target once an epoch, but for the
    first and for a last piece shorter than a window. `batches` reads shuffled batches natively; ``dataset[i]``
    serves a DataLoader. The file is never mapped: one that is truncated while it is read raises, where a mapped one
    would kill the process with SIGBUS. Can be pickled and forked.

    Args:
        path: The file, ids in this machine's byte order, as ``numpy.ndarray.tofile`` writes them.
        seq_len: Tokens in a window.
        dtype: Of the ids in the file; any integer type.
        seed: Of the shuffle.
        vocab_size: Ids must be in [0, vocab_size). Checked on whatever is read, at the speed of reading; `check_tokens`
            checks the whole file. None: not checked.
        offset_bytes: Header to skip.

    Raises:
        InvalidInputError: the file isn't a whole number of ids, or is shorter than one window and its last target.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        seq_len: int,
        dtype: str | np.dtype[Any] | type = "uint16",
        seed: int = 0,
        vocab_size: int | None = None,
        offset_bytes: int = 0,
    ) -> None:
        self.path, self.seq_len, self.seed = Path(path), seq_len, seed
        self.dtype = np.dtype(dtype)
        self.vocab_size, self.offset_bytes = vocab_size, offset_bytes
        if self.dtype.name not in TOKEN_TYPES or not self.dtype.isnative:
            raise InvalidInputError(
                f"dtype must be one of {one_of(TOKEN_TYPES)}, in this machine's byte order, got {dtype!r}."
            )
        if seq_len < 1:
            raise InvalidInputError(f"seq_len must be at least 1, got {seq_len}.")
        if vocab_size is not None and vocab_size < 1:
            raise InvalidInputError(f"vocab_size must be at least 1, got {vocab_size}.")
        size = self.dtype.itemsize
        self.num_tokens = whole_items(self.path, size, offset_bytes, f"{self.dtype.name}'s {size}")
        if self.num_tokens <= seq_len:
            raise InvalidInputError(
                f"{self.path} holds {self.num_tokens} tokens; a window needs seq_len + 1 = {seq_len + 1}."
            )
        self._file: Any = None

    def __len__(self) -> int:
        """Windows in the file."""
        return (self.num_tokens - 1) // self.seq_len

    def __getitem__(self, index: int) -> Batch:
        """Return window ``index``: inputs and targets, int64 ``[seq_len]`` each."""
        first = range(len(self))[index] * self.seq_len
        with _native.explained():
            inputs, targets = self._native_file().read_window(first, self.seq_len)
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def check_tokens(self) -> None:
        """Read the whole file, on all cores, and check every token.

        Raises:
            InvalidInputError: a token isn't in [0, vocab_size); the message names the first.
        """
        if self.vocab_size is None:
            raise InvalidInputError("check_tokens needs to know vocab_size; give it to TokenDataset.")
        with _native.explained():
            self._native_file().check(self.num_tokens)

    def batches(
        self,
        batch_size: int,
        *,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
        epochs: int | None = None,
        prefetch: int = 2,
    ) -> TokenBatches:
        """Return an iterator over shuffled batches ``(inputs, targets)``, int64 ``[batch_size, seq_len]`` each.

        Global batch k is a function of (seed, k): the next ``batch_size * world_size`` windows of its epoch's order,
        of which each rank gets ``batch_size`` in a row. Windows that don't fill a global batch are left out of that
        epoch, others in each. Order and speed don't depend on where it starts.

        Args:
            batch_size: Windows in one rank's batch.
            start: Number of the first batch, counted over epochs from 0: the steps already taken.
            rank: This process's.
            world_size: Number of ranks.
            epochs: Batches end after so many epochs, counted from batch 0; None: never.
            prefetch: Batches that a native thread reads ahead; 0: read when asked.

        Raises:
            InvalidInputError: fewer windows than one global batch, or a rank outside the world.
        """
        check_ranks(rank, world_size)
        for name, value, least in (("batch_size", batch_size, 1), ("start", start, 0), ("prefetch", prefetch, 0),
                                   ("epochs", 1 if epochs is None else epochs, 1)):  # fmt: skip
            if value < least:
                raise InvalidInputError(f"{name} must be at least {least}, got {value}.")
        if batch_size * world_size > len(self):
            raise InvalidInputError(
                f"A global batch is {batch_size * world_size} windows ({batch_size} on each of {world_size} ranks) and "
                f"{self.path} has {len(self)} of {self.seq_len} tokens; take a smaller batch_size or seq_len, or more "
                "data."
            )
        return TokenBatches(self, batch_size, start, rank, world_size, epochs, prefetch)

    def loader(self, batch_size: int, *, rank: int = 0, world_size: int = 1, prefetch: int = 2) -> TokenLoader:
        """Return a loader of the same batches: one epoch each time it is iterated; see `batches`."""
        return TokenLoader(self, batch_size, rank=rank, world_size=world_size, prefetch=prefetch)

    def _native_file(self) -> Any:
        if self._file is None:
            with _native.explained():
                self._file = _native.TokenFile(
                    os.fspath(self.path), self.dtype.name, self.offset_bytes, self.vocab_size or 0
                )
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}


class TokenBatches(Iterator[Batch]):
    """An iterator of `TokenDataset.batches`, with a position: ``state_dict`` counts what was taken, not read ahead."""

    def __init__(
        self, dataset: TokenDataset, batch_size: int, start: int, rank: int, world_size: int, epochs: int | None,
        prefetch: int,
    ) -> None:  # fmt: skip
        self.dataset, self._epochs = dataset, epochs
        self.batch_size, self._rank, self._world_size, self._prefetch = batch_size, rank, world_size, prefetch
        self.batches_per_epoch = len(dataset) // (batch_size * world_size)
        self._open(start)

    def _open(self, number: int) -> None:
        self.number = number  # of the next batch
        self._reader = _native.TokenBatches(
            file=self.dataset._native_file(),
            seq_len=self.dataset.seq_len,
            windows=len(self.dataset),
            batch_size=self.batch_size,
            start=number,
            rank=self._rank,
            world_size=self._world_size,
            seed=self.dataset.seed % 2**64,
            prefetch=self._prefetch,
        )

    @property
    def epoch(self) -> int:
        """Of the next batch."""
        return self.number // self.batches_per_epoch

    def __next__(self) -> Batch:
        if self._epochs is not None and self.epoch >= self._epochs:
            raise StopIteration
        with _native.explained():
            inputs, targets = self._reader.next()
        self.number += 1
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    @property
    def place(self) -> tuple[int, int]:
        """The rank and the number of ranks these batches are for."""
        return self._rank, self._world_size

    def part(self, rank: int, world_size: int) -> TokenBatches:
        """Return one rank's part of these batches, which are those of all ranks together, from here on."""
        size = part_size(self.batch_size, world_size)
        return TokenBatches(self.dataset, size, self.number, rank, world_size, self._epochs, self._prefetch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, in windows over all ranks."""
        return {
            "epoch": self.epoch,
            "position": self.number % self.batches_per_epoch * self.batch_size * self._world_size,
            **self._order(),
        }

    def _order(self) -> dict[str, Any]:
        """What the order depends on, besides the position."""
        data = self.dataset
        return {"seed": data.seed, "seq_len": data.seq_len, "num_tokens": data.num_tokens}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved position, on any number of ranks with which it lies between two global batches.

        Raises:
            InvalidInputError: the state belongs to other data or another order, or lies inside a global batch.
        """
        check_same_order(state, self._order())
        number, inside = divmod(int(state["position"]), self.batch_size * self._world_size)
        if inside:
            raise InvalidInputError(
                f"{state['position']} windows of the epoch were consumed, which is no multiple of the global batch of "
                f"{self.batch_size * self._world_size}; keep batch_size * world_size, or start a new epoch."
            )
        self._open(int(state["epoch"]) * self.batches_per_epoch + number)


class TokenLoader:
    """Batches of a `TokenDataset` for those who want a loader: iterating it gives the first epoch, always the same.

    `fb.Trainer` goes on through the epochs, and resumes anywhere at once.
    """

    def __init__(self, dataset: TokenDataset, batch_size: int, **options: int) -> None:
        self.dataset, self.batch_size, self._options = dataset, batch_size, options
        self._length = self.stream().batches_per_epoch

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._length

    def __iter__(self) -> TokenBatches:
        return self.dataset.batches(self.batch_size, epochs=1, **self._options)

    @property
    def place(self) -> tuple[int, int]:
        """The rank and the number of ranks these batches are for."""
        return self._options["rank"], self._options["world_size"]

    def part(self, rank: int, world_size: int) -> TokenLoader:
        """Return one rank's part of these batches, which are those of all ranks together."""
        options = self._options | {"rank": rank, "world_size": world_size}
        return TokenLoader(self.dataset, part_size(self.batch_size, world_size), **options)

    def stream(self) -> TokenBatches:
        """Return the batches of all epochs, one after the other."""
        return self.dataset.batches(self.batch_size, **self._options)
