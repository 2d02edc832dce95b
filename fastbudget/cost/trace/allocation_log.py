"""What a traced step allocated and freed, in order: the record that memory simulations replay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PHASES = ("init", "forward", "loss", "backward", "optimizer", "zero_grad", "evaluate")
CATEGORIES = ("parameter", "gradient", "optimizer_state", "activation", "temporary", "input", "buffer")


@dataclass(frozen=True, kw_only=True)
class AllocationLog:
    """The allocations and frees of one traced run, E events over S storages.

    Sizes are the bytes asked for, before any allocator rounds them. A storage number is never used twice.

    Attributes:
        storage: int64 [E], the storage that the event is about, an index into the tables [S].
        delta_bytes: int64 [E], the size at an allocation, minus the size at a free.
        phase: uint8 [E], the phase in which the event happened, an index into ``PHASES``.
        size_bytes: int64 [S].
        category: uint8 [S], an index into ``CATEGORIES``.
        birth_phase: uint8 [S], an index into ``PHASES``.
        module: int32 [S], the module that was running at birth, an index into ``modules``.
        operation: int32 [S], the operation that made it, a row of the operation table; -1 for none.
        modules: qualified names of the modules; the model itself is the empty name.
    """

    storage: NDArray[np.int64]
    delta_bytes: NDArray[np.int64]
    phase: NDArray[np.uint8]
    size_bytes: NDArray[np.int64]
    category: NDArray[np.uint8]
    birth_phase: NDArray[np.uint8]
    module: NDArray[np.int32]
    operation: NDArray[np.int32]
    modules: tuple[str, ...]

    @cached_property
    def live_bytes(self) -> NDArray[np.int64]:
        """int64 [E]: bytes alive after each event."""
        return np.cumsum(self.delta_bytes)

    @property
    def event_at_peak(self) -> int:
        """Index of the event after which most bytes are alive; -1 for an empty log."""
        return int(np.argmax(self.live_bytes)) if len(self.delta_bytes) else -1

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once."""
        return int(self.live_bytes.max(initial=0))

    def live_storages(self, event: int) -> NDArray[np.int64]:
        """Return the numbers of the storages alive after ``event``, largest first."""
        alive = np.zeros(len(self.size_bytes), dtype=np.int64)
        np.add.at(alive, self.storage[: event + 1], np.sign(self.delta_bytes[: event + 1]))
        numbers = np.flatnonzero(alive > 0)
        return numbers[np.argsort(-self.size_bytes[numbers], kind="stable")]

    def bytes_by_category(self, event: int) -> dict[str, int]:
        """Return the bytes alive after ``event`` for every category."""
        numbers = self.live_storages(event)
        totals = np.zeros(len(CATEGORIES), dtype=np.int64)
        np.add.at(totals, self.category[numbers], self.size_bytes[numbers])
        return dict(zip(CATEGORIES, totals.tolist(), strict=True))
