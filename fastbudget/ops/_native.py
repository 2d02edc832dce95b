"""The one door of this room to the compiled module."""

from __future__ import annotations

from typing import Any

from ..core.errors import MissingExtraError


def native() -> Any:
    """Return ``fastbudget._C``.

    Raises:
        MissingExtraError: the package runs from a source tree where it was never built.
    """
    try:
        import fastbudget._C as _C
    except ImportError as error:
        raise MissingExtraError(
            f"fastbudget's compiled module can't be loaded ({error}). Install with `pip install .`, or build in "
            "place with `pip install -e .`; `python -m pytest` from the source tree needs the latter."
        ) from error
    return _C
