"""Exit codes, and errors as users see them."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer

from ..core.errors import (
    BudgetTooSmallError,
    ConfigurationError,
    FastbudgetError,
    InvalidInputError,
    NonFiniteLossError,
    RunDirectoryError,
)

DONE, FAILED, WRONG_USAGE, OUT_OF_BUDGET, REFUSED = 0, 1, 2, 3, 4
INTERRUPTED, TERMINATED = 130, 143


class Terminated(BaseException):
    """SIGTERM arrived while no training loop was there to save."""


def _on_terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, Terminated):
        return TERMINATED
    if isinstance(error, BudgetTooSmallError):
        return OUT_OF_BUDGET
    if isinstance(error, NonFiniteLossError):
        return FAILED
    if isinstance(error, ConfigurationError | RunDirectoryError | InvalidInputError):
        return WRONG_USAGE
    return FAILED


def print_json(document: dict[str, Any]) -> None:
    """Write one JSON document to stdout; numbers that JSON hasn't got, NaN and infinities, become null."""
    sys.stdout.write(json.dumps(_finite(document), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turn errors that have something to tell the user into a message and an exit code; others keep their traceback.

    With ``as_json`` the message is also the JSON document on stdout.
    """
    previous = signal.signal(signal.SIGTERM, _on_terminate)
    try:
        yield
    except (FastbudgetError, KeyboardInterrupt, Terminated) as error:
        code = exit_code_of(error)
        text = str(error) or {INTERRUPTED: "Interrupted.", TERMINATED: "Terminated."}.get(code, type(error).__name__)
        sys.stderr.write(f"fastbudget: {text}\n")
        if as_json:
            print_json({"error": {"type": type(error).__name__, "message": text}, "exit_code": code})
        raise SystemExit(code) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:  # a fault of ours or of the user's code: the traceback follows on stderr
        if as_json:
            print_json({"error": {"type": type(error).__name__, "message": str(error)}, "exit_code": FAILED})
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
