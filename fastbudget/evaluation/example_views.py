"""Data sets of other libraries as examples that can be drawn by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import InvalidInputError, did_you_mean, one_of


class Examples:
    """A map-style data set: ``examples[i] -> (input, reference)``, with ``len`` and ``ids``. See `as_examples`."""

    def __init__(
        self, data: Any, *, input: str | Sequence[str] | None, reference: str | None, ids: list[str] | None
    ) -> None:
        self._data, self._input, self._reference = data, input, reference
        self.ids = ids

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        row = self._data[index]
        if self._input is None or self._reference is None:
            return row[0], row[1]
        if isinstance(self._input, str):
            return row[self._input], row[self._reference]
        return {name: row[name] for name in self._input}, row[self._reference]


def as_examples(
    data: Any, *, input: str | Sequence[str] | None = None, reference: str | None = None, id: str | None = None
) -> Examples:
    """View a Hugging Face ``datasets.Dataset``, a torch ``Dataset`` or a list as examples for `fb.evaluate`.

    Nothing is copied; an example is read when it is drawn.

    Args:
        data: Map-style: ``len(data)`` and ``data[i]``, which is a mapping of columns or a pair (input, reference).
        input: Column of inputs; several: the input is a mapping of them. Not for pairs.
        reference: Column of references. Not for pairs.
        id: Column of ids, each once; None: none, and examples are known by their content.

    Raises:
        InvalidInputError: no random access, no example, a column that isn't there, ids that aren't unique.
    """
    if isinstance(data, Mapping):
        raise InvalidInputError(f"data is a mapping of {one_of(map(str, data))}: give one split, such as data['test'].")
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InvalidInputError(
            f"data must have a length and an index, and a {type(data).__name__} has not. A stream can't be sampled: "
            "load it first (for datasets: streaming=False, or list(data))."
        )
    if len(data) == 0:
        raise InvalidInputError("data holds no example.")
    first = data[0]
    if not isinstance(first, Mapping):
        if input is not None or reference is not None or id is not None:
            raise InvalidInputError(
                f"input=, reference= and id= name columns, but an example of the data is a {type(first).__name__}."
            )
        if not isinstance(first, list | tuple) or len(first) != 2:
            raise InvalidInputError(
                f"An example must be a mapping or a pair (input, reference), got a {type(first).__name__}."
            )
        return Examples(data, input=None, reference=None, ids=getattr(data, "ids", None))
    if input is None or reference is None:
        raise InvalidInputError(f"Give input= and reference=: the columns are {one_of(map(str, first))}.")
    for name in [*([input] if isinstance(input, str) else input), reference, *([id] if id else [])]:
        if name not in first:
            columns = list(map(str, first))
            raise InvalidInputError(
                f"The data has no column {name!r}.{did_you_mean(name, columns)} Its columns are {one_of(columns)}."
            )
    return Examples(data, input=input, reference=reference, ids=_ids(data, id) if id else None)


def _ids(data: Any, name: str) -> list[str]:
    # A table gives one column without reading the others; anything else is read row by row.
    columns = getattr(data, "column_names", None)
    values = (
        data[name] if columns is not None and name in columns else [data[index][name] for index in range(len(data))]
    )
    ids = [str(value) for value in values]
    if len(set(ids)) < len(ids):
        raise InvalidInputError(
            f"The ids in {name!r} must be unique; {len(ids) - len(set(ids))} of them repeat another."
        )
    return ids
