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


class BudgetSpent(BaseException):
    """The budget ended during an evaluation or a save, which is abandoned; a `BudgetGuard`'s block ends with it.

    No `Exception`, so that like KeyboardInterrupt it passes through code that catches those.
    """


class RunDirectoryError(FastbudgetError, RuntimeError):
    """The run directory holds something that the call must not touch, or lacks what it needs."""


class CheckpointError(RunDirectoryError):
    """A checkpoint is missing, incomplete, damaged or of an unknown version; nothing of it was used."""


class SaveError(FastbudgetError, OSError):
    """A checkpoint could not be written; checkpoints saved before are intact."""


class DataFileError(FastbudgetError, OSError):
    """A data file can't be read, or changed while it was being read."""


class EvaluationStoreError(FastbudgetError, RuntimeError):
    """An evaluation store can't be used: it is damaged, of another program or a newer version, or locked."""


class NonFiniteLossError(FastbudgetError, ArithmeticError):
    """The loss became NaN or infinite."""


class RankFailedError(FastbudgetError, RuntimeError):
    """Another rank of a distributed run failed, which ended this one; that rank's stderr has the traceback."""


class OutOfMemoryError(FastbudgetError, RuntimeError):
    """A step or an evaluation doesn't fit the memory even one sample at a time; the message says what would help."""


class MissingExtraError(FastbudgetError, ImportError):
    """An optional package is needed; the message holds the install command."""


def not_compiled(error: ImportError) -> MissingExtraError:
    """Return the error for a package whose compiled module is missing: a source tree that was never built."""
    return MissingExtraError(
        f"fastbudget's compiled module can't be loaded ({error}). This is a source tree: run from another directory to "
        "use the installed package, or build in place with `pip install -e . --no-build-isolation`."
    )


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest allowed name, or an empty string."""
    by_lower = {name.lower(): name for name in allowed}
    close = get_close_matches(given.lower(), list(by_lower), n=1, cutoff=0.6)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def one_of(allowed: Iterable[str]) -> str:
    """Return the allowed names as a readable list."""
    return ", ".join(repr(name) for name in allowed)
