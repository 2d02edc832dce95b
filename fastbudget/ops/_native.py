"""The one door of this room to the compiled module."""

from __future__ import annotations

from typing import Any

from ..core.errors import not_compiled


def native() -> Any:
    """Return ``fastbudget._C``.

    Raises:
        MissingExtraError: the package runs from a source tree where it was never built.
    """
    try:
        import fastbudget._C as _C
    except ImportError as error:
        raise not_compiled(error) from error
    return _C
