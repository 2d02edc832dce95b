"""Names for interchangeable things: metrics, optimizers, workloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from .errors import InvalidInputError, did_you_mean, one_of

T = TypeVar("T")


class Registry(Generic[T]):
    """An ordered mapping of names that answers a misspelt one with the closest it knows."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        """Add an entry.

        Raises:
            InvalidInputError: the name is taken.
        """
        if name in self._entries:
            raise InvalidInputError(f"The {self._kind} {name!r} is registered already; choose another name.")
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """Return an entry.

        Raises:
            InvalidInputError: the name is unknown; the message lists the known ones.
        """
        try:
            return self._entries[name]
        except KeyError:
            raise InvalidInputError(
                f"Unknown {self._kind} {name!r}.{did_you_mean(name, self._entries)} Known: {one_of(self)}."
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
