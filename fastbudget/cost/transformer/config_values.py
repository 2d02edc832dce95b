"""A model configuration read key by key, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import InvalidInputError, did_you_mean

_INT64_MAX = 2**63 - 1


class ConfigValues:
    """Checked access to the keys of a Hugging Face ``config.json``.

    A key may go by several names (``n_embd``, ``hidden_size``); the first that is there counts. Null means
    absent, as it does to ``transformers``.
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = values
        self.name = name

    def has(self, key: str) -> bool:
        """Return whether the key is there and not null."""
        return self.values.get(key) is not None

    def size(self, *keys: str, default: int | None = None) -> int:
        """Return a size, an integer of at least 1.

        Raises:
            InvalidInputError: it is missing and has no default, or is no integer in [1, 2^63).
        """
        value = self.count(*keys, default=default)
        if value < 1:
            raise InvalidInputError(f"{self.name}: {keys[0]} must be at least 1, got {value}.")
        return value

    def count(self, *keys: str, default: int | None = None) -> int:
        """Return an integer of at least 0, likewise."""
        for key in keys:
            if self.has(key):
                return self._integer(key, self.values[key])
        if default is None:
            raise InvalidInputError(
                f"{self.name}: the key {keys[0]!r} is missing.{did_you_mean(keys[0], self.values)}"
                + (f" Also read as: {', '.join(keys[1:])}." if len(keys) > 1 else "")
            )
        return default

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        return bool(self.values[key]) if self.has(key) else default

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        return str(self.values[key]) if self.has(key) else default

    def integers(self, key: str) -> tuple[int, ...] | None:
        """Return a list of integers; None: absent."""
        if not self.has(key):
            return None
        return tuple(self._integer(key, value) for value in self.values[key])

    def heads_of(self, hidden: int, heads: int) -> int:
        """Return the size of a head, from ``head_dim`` or by dividing.

        Raises:
            InvalidInputError: there is no ``head_dim`` and the heads don't divide the width.
        """
        if self.has("head_dim"):
            return self.size("head_dim")
        if hidden % heads:
            raise InvalidInputError(
                f"{self.name}: {heads} attention heads don't divide the hidden size {hidden}. "
                "Give head_dim, or sizes that divide."
            )
        return hidden // heads

    def _integer(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            raise InvalidInputError(f"{self.name}: {key} must be an integer, got {value!r}.")
        if not 0 <= value <= _INT64_MAX:
            raise InvalidInputError(f"{self.name}: {key} must be in [0, 2**63), got {value!r}.")
        return int(value)
