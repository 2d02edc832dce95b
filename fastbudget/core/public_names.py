"""Public names that are imported when first used, so that importing a package stays light (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def lazy_names(
    package: str, namespace: dict[str, Any], sources: dict[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    Args:
        package: The package's ``__name__``.
        namespace: The package's ``globals()``; a name is stored there once resolved.
        sources: Public name to the submodule that defines it; a name that equals its source is the submodule itself.
    """

    def find(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{sources[name]}")
        value = module if name == sources[name] else getattr(module, name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*namespace, *namespace["__all__"]})

    return find, names
