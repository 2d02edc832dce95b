"""The allocations and frees of a training step, in order, with the category of each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...core.errors import InvalidInputError

ANALYTIC_CATEGORIES = (
    "parameter",
    "gradient",
    "optimizer_state",
    "activation",
    "logits",
    "temporary",
    "communication",
    "input",
    "buffer",
)
_INDEX = {name: index for index, name in enumerate(ANALYTIC_CATEGORIES)}


@dataclass
class StageEvents:
    """A growing sequence of allocations and frees.

    Handles are storage numbers, as :func:`simulate_allocator` wants them; those of empty storages are
    dropped, for the allocator never sees them.
    """

    storage: list[int] = field(default_factory=list)
    delta_bytes: list[int] = field(default_factory=list)
    category: list[int] = field(default_factory=list)
    _size: list[int] = field(default_factory=list)
    _of: list[int] = field(default_factory=list)

    def allocate(self, category: str, size: int) -> int:
        """Record an allocation and return its handle."""
        handle = len(self._size)
        kind = _INDEX[category]
        self._size.append(size)
        self._of.append(kind)
        if size > 0:
            self.storage.append(handle)
            self.delta_bytes.append(size)
            self.category.append(kind)
        return handle

    def free(self, *handles: int) -> None:
        """Record that storages are freed."""
        for handle in handles:
            size = self._size[handle]
            if size > 0:
                self.storage.append(handle)
                self.delta_bytes.append(-size)
                self.category.append(self._of[handle])

    def peak(self) -> tuple[int, dict[str, int]]:
        """Return the most bytes alive at once, unrounded, and the bytes of each category there."""
        if not self.storage:
            return 0, dict.fromkeys(ANALYTIC_CATEGORIES, 0)
        try:
            deltas = np.asarray(self.delta_bytes, dtype=np.int64)
        except OverflowError as error:
            raise InvalidInputError(
                "The step allocates more than int64 bytes; check the batch and the sequence."
            ) from error
        alive = np.cumsum(deltas)
        at = int(np.argmax(alive))
        kinds = np.asarray(self.category)[: at + 1]
        sums = np.bincount(kinds, weights=deltas[: at + 1].astype(np.float64), minlength=len(ANALYTIC_CATEGORIES))
        return int(alive[at]), {name: int(sums[index]) for index, name in enumerate(ANALYTIC_CATEGORIES)}
