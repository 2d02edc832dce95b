"""Data sets as users hold them: examples by index, or batches as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..store import hash_example, hash_examples
from ..store.content_hash import HASH_BYTES, Hashes, hashes_from

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples that belong to one call of ``predict``.

    Args:
        inputs: What ``predict`` takes.
        references: [n, …].
        indices: int64 [n], places in the data set.
        hashes: uint8 [n, 16], contents; None where they aren't known.
    """

    inputs: Any
    references: Any
    indices: Indices
    hashes: Hashes | None

    def __len__(self) -> int:
        return len(self.indices)


class HashedData:
    """A data set whose content hashes were computed once, for repeated evaluations of data that is slow to read.

    Args:
        data: Map-style: ``data[i] -> (input, reference)``.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        self.content_hashes = ExampleSet(data).hashes()
        if getattr(data, "ids", None) is not None:
            self.ids = data.ids

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index]


class ExampleSet:
    """Examples by index: a map-style data set, or batches taken apart.

    ``data.ids`` may name the examples; one named twice must have one content and counts once. ``data.content_hashes``,
    uint8 [N, 16], saves reading everything to draw a sample; what is read is compared with it.

    Args:
        data: ``data[i] -> (input, reference)`` with a length, a list of batches, or a torch DataLoader over a map-style
            data set.
        collate: Makes a batch of a list of inputs, or of references; None: numbers are stacked, the rest are lists.
    """

    def __init__(self, data: Any, collate: Callable[[list[Any]], Any] | None = None) -> None:
        if is_loader(data):
            data = data.dataset
        elif not is_map_style(data):
            raise InvalidInputError(
                f"A sample, a limit or a decision needs data[i] -> (input, reference) and len(data); a "
                f"{type(data).__name__} can only be gone through. Pass the data set itself, or use tier='full'."
            )
        self._collate = collate or stack
        self._examples = _Rows(data) if is_batch_list(data) else data
        self._claimed = _claimed_hashes(data, len(self._examples))
        self.ids = _ids(data, len(self._examples))

    def __len__(self) -> int:
        return len(self._examples)

    def take(self, indices: Indices) -> Batch:
        """Read examples.

        Raises:
            InvalidInputError: an example isn't a pair, or isn't what ``content_hashes`` says.
        """
        examples = [_pair(self._examples[int(index)]) for index in indices]
        hashes = _hashes_or_none(examples)
        if self._claimed is not None:
            if hashes is not None and not np.array_equal(hashes, self._claimed[indices]):
                wrong = int(indices[np.flatnonzero((hashes != self._claimed[indices]).any(1))[0]])
                raise InvalidInputError(
                    f"data[{wrong}] isn't what data.content_hashes says: the data changed, or data[i] isn't "
                    "deterministic (random augmentation?). Compute the hashes anew and evaluate without augmentation."
                )
            hashes = self._claimed[indices]
        return Batch(
            inputs=self._collate([example[0] for example in examples]),
            references=self._collate([example[1] for example in examples]),
            indices=indices,
            hashes=hashes,
        )

    def hashes(self) -> Hashes:
        """Return every example's content hash, uint8 [N, 16], reading all examples where they aren't known.

        Raises:
            InvalidInputError: an example's content has no hash.
        """
        if self._claimed is None:
            self._claimed = hash_examples(_pair(self._examples[index]) for index in range(len(self)))
        return self._claimed

    def references(self) -> list[Any]:
        """Return all references, reading every example."""
        return [_pair(self._examples[index])[1] for index in range(len(self))]

    def distinct(self) -> Indices:
        """Return the examples to count, int64 [≤ N]: each id once, in order.

        Raises:
            InvalidInputError: an id names different contents.
        """
        if self.ids is None or len(set(self.ids)) == len(self.ids):
            return np.arange(len(self))
        hashes = self.hashes()
        first: dict[Any, int] = {}
        for index, identity in enumerate(self.ids):
            earlier = first.setdefault(identity, index)
            if not np.array_equal(hashes[earlier], hashes[index]):
                raise InvalidInputError(
                    f"data.ids names {identity!r} twice, data[{earlier}] and data[{index}], with different contents; "
                    "give each example its own id."
                )
        return np.array(sorted(first.values()), np.int64)


class _Rows:
    """The single examples of a list of batches."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = [_batch_pair(batch) for batch in batches]
        self._starts = np.cumsum([0, *(len(references) for _, references in self._batches)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        inputs, references = self._batches[number]
        row, count = index - int(self._starts[number]), len(references)
        return take_rows(inputs, [row], count, single=True), take_rows(references, [row], count, single=True)


def streamed_batches(data: Iterable[Any]) -> Iterator[Batch]:
    """Yield the batches of a loader as they come.

    Raises:
        InvalidInputError: there is nothing to go through, or what comes isn't pairs.
    """
    if not isinstance(data, Iterable):
        raise InvalidInputError(
            "data must be a re-iterable of batches (inputs, references), or a map-style data set data[i] -> (input, "
            f"reference) with len(data), got {data!r:.60}."
        )
    start = 0
    for item in data:
        inputs, references = _batch_pair(item)
        count = len(references)
        rows = (
            (take_rows(inputs, [row], count, single=True), take_rows(references, [row], count, single=True))
            for row in range(count)
        )
        yield Batch(
            inputs=inputs,
            references=references,
            indices=np.arange(start, start + count),
            hashes=_hashes_or_none(rows),
        )
        start += count


def take_rows(value: Any, rows: Sequence[int], count: int, *, single: bool = False) -> Any:
    """Return some of a batch's examples, or with ``single`` one without its batch dimension.

    Args:
        value: Tensors or arrays [count, …], lists of ``count`` items, or mappings and tuples of these.
        rows: Which.
        count: Examples in the batch.
        single: Give the example itself.
    """
    if isinstance(value, Mapping):
        return {key: take_rows(item, rows, count, single=single) for key, item in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and _is_structure(value, count)):
        return type(value)(take_rows(item, rows, count, single=single) for item in value)
    if len(value) != count:
        raise InvalidInputError(f"A batch of {count} references has inputs of length {len(value)}.")
    if isinstance(value, list):
        return value[rows[0]] if single else [value[row] for row in rows]
    return value[rows[0]] if single else value[list(rows)]


def _is_structure(value: list[Any], count: int) -> bool:
    """Whether a list holds several batched arrays, as torch's default collate makes of tuples, and not examples."""
    return bool(value) and all(getattr(item, "ndim", 0) >= 1 and len(item) == count for item in value)


def is_map_style(data: Any) -> bool:
    """Whether examples can be read by index."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping)


def is_batch_list(data: Any) -> bool:
    """Whether data is a list or tuple of whole batches: the references of the first have a batch dimension."""
    if not isinstance(data, list | tuple) or not data:
        return False
    first = data[0]
    return isinstance(first, list | tuple) and len(first) == 2 and getattr(first[1], "ndim", 0) >= 1


def is_loader(data: Any) -> bool:
    """Whether data is a loader over a map-style data set."""
    return not is_map_style(data) and is_map_style(getattr(data, "dataset", None))


def stack(values: list[Any]) -> Any:
    """Return a batch: numbers, arrays and tensors of one shape stacked, mappings and tuples by part, else the list."""
    first = values[0]
    if hasattr(first, "detach"):
        if any(value.shape != first.shape for value in values):
            return values
        import torch

        return torch.stack(values)
    if isinstance(first, Mapping):
        return {key: stack([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stack(list(parts)) for parts in zip(*values, strict=True))
    if isinstance(first, int | float | np.generic | np.ndarray) and not isinstance(first, np.str_ | np.bytes_):
        arrays = [np.asarray(value) for value in values]
        return np.stack(arrays) if all(array.shape == arrays[0].shape for array in arrays) else values
    if isinstance(first, list) and all(isinstance(item, int | float) for value in values for item in value):
        return np.asarray(values) if all(len(value) == len(first) for value in values) else values
    return values


def _pair(example: Any) -> tuple[Any, Any]:
    if not isinstance(example, list | tuple) or len(example) != 2:
        raise InvalidInputError(
            f"data[i] must be a pair (input, reference), got a {type(example).__name__}; wrap the data set."
        )
    return example[0], example[1]


def _batch_pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise InvalidInputError(
            f"data must yield pairs (inputs, references), got a {type(batch).__name__}; wrap the loader."
        )
    return batch[0], batch[1]


def _hashes_or_none(examples: Iterable[Any]) -> Hashes | None:
    """Return content hashes, or None where a content has none: evaluating needs no hashes, comparing does."""
    try:
        return hashes_from(hash_example(tuple(example)) for example in examples)
    except (InvalidInputError, TypeError):
        return None


def _claimed_hashes(data: Any, count: int) -> Hashes | None:
    claimed = getattr(data, "content_hashes", None)
    if claimed is None:
        return None
    array = np.asarray(claimed)
    if array.dtype != np.uint8 or array.shape != (count, HASH_BYTES):
        raise InvalidInputError(
            f"data.content_hashes must be uint8 [{count}, {HASH_BYTES}], got {array.dtype} {list(array.shape)}."
        )
    return array


def _ids(data: Any, count: int) -> list[Any] | None:
    ids = getattr(data, "ids", None)
    if ids is None:
        return None
    plain = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if len(plain) != count:
        raise InvalidInputError(f"data.ids must name each example, got {len(plain)} for {count} examples.")
    return plain
