"""The errors fastbudget raises. Each says what was wrong, what is required, and what to do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class FastbudgetError(Exception):
    """Base of every error fastbudget raises on purpose."""


class InvalidInputError(FastbudgetError, ValueError):
    """An argument or a value in the data is not usable."""


class ConfigurationError(FastbudgetError, ValueError):
    """A configuration file has a mistake; the message names the file, the line and the key."""


class BudgetTooSmallError(FastbudgetError, ValueError):
    """Not even one step, one save and one evaluation fit the budget; nothing was trained."""


class RunDirectoryError(FastbudgetError, RuntimeError):
    """The run directory holds something that the call must not touch, or lacks what it needs."""


class SaveError(FastbudgetError, OSError):
    """A checkpoint could not be written; checkpoints saved before are intact."""


class NonFiniteLossError(FastbudgetError, ArithmeticError):
    """The loss became NaN or infinite."""


class MissingExtraError(FastbudgetError, ImportError):
    """An optional package is needed; the message holds the install command."""


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest allowed name, or an empty string."""
    close = get_close_matches(given, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def one_of(allowed: Iterable[str]) -> str:
    """Return the allowed names as a readable list."""
    return ", ".join(repr(name) for name in allowed)
