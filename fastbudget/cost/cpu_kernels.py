"""Memory that kernels take for themselves beside their outputs, by device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class KernelMemory(Protocol):
    """Tells what memory a kernel takes for itself."""

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return the bytes that the operation holds while it runs, beside inputs and outputs."""
        ...


class CpuKernelMemory:
    """What the CPU kernels of PyTorch take for themselves."""

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Return the bytes that the operation holds while it runs, beside inputs and outputs."""
        return 0
