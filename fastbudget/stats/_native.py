"""The one door of this room to the compiled module."""

from __future__ import annotations

from ..core.errors import not_compiled

try:
    from .._C import SequentialTest
except ImportError as error:
    raise not_compiled(error) from error

__all__ = ["SequentialTest"]
