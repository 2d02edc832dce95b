"""Follow storages from birth to death and write both down as an :class:`AllocationLog`."""

from __future__ import annotations

import weakref
from array import array
from typing import TYPE_CHECKING

import numpy as np

from .allocation_log import CATEGORIES, PHASES, AllocationLog

if TYPE_CHECKING:
    import torch

_TEMPORARY = CATEGORIES.index("temporary")
_ACTIVATION = CATEGORIES.index("activation")
_BACKWARD = PHASES.index("backward")
_FORWARD_PHASES = (PHASES.index("forward"), PHASES.index("loss"))


class StorageRecorder:
    """Records when each storage is born and freed.

    A storage is known by its address while it lives; a weak reference tells of its end, so tensors that
    share memory (views, tied weights, ``detach``) count once and die when the last of them does.
    """

    def __init__(self) -> None:
        self.phase = 0
        self._storage = array("q")
        self._delta = array("q")
        self._phase = array("B")
        self._size = array("q")
        self._category = array("B")
        self._birth_phase = array("B")
        self._module = array("i")
        self._operation = array("i")
        self._borrowed: list[tuple[int, int]] = []
        self._alive: dict[int, tuple[int, weakref.ref[object]]] = {}

    def observe(self, tensor: torch.Tensor, module: int, operation: int) -> None:
        """Record the birth of the tensor's storage unless it is known already."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = self._alive.get(address)
        if known is not None:
            if self._size[known[0]] == storage.nbytes():
                return
            self._free(address)  # resized in place: the allocator sees a new block
        number = self._allocate(storage.nbytes(), module, operation)

        def freed(_: object) -> None:
            current = self._alive.get(address)
            if current is not None and current[0] == number:
                self._free(address)

        self._alive[address] = (number, weakref.ref(storage, freed))

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """Return the storage number of a tensor that has been observed and lives."""
        known = self._alive.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def label(self, tensor: torch.Tensor, category: str, module: int | None = None) -> None:
        """Say what the tensor's storage is for, and whose it is if not of the module that was running."""
        number = self.number_of(tensor)
        if number is not None:
            self._category[number] = CATEGORIES.index(category)
            if module is not None:
                self._module[number] = module

    def label_saved_activations(self) -> None:
        """Label what the forward pass left for the backward pass; call between the two."""
        for number, _ in self._alive.values():
            if self._category[number] == _TEMPORARY and self._birth_phase[number] in _FORWARD_PHASES:
                self._category[number] = _ACTIVATION

    def label_recomputed(self, tensor: torch.Tensor) -> None:
        """Label a tensor that a recomputed forward pass made during the backward pass."""
        number = self.number_of(tensor)
        if number is not None and self._birth_phase[number] == _BACKWARD:
            self._category[number] = _ACTIVATION

    def borrow(self, kind: int, module: int, operation: int) -> int:
        """Record memory that a kernel takes for itself, of a size that :meth:`finish` is told by kind.

        Give it back with :meth:`give_back`.
        """
        number = self._allocate(0, module, operation)
        self._borrowed.append((number, kind))
        self._write(number, 1)
        return number

    def give_back(self, number: int) -> None:
        """Record the end of memory taken with :meth:`borrow`."""
        self._write(number, -1)

    def stop(self) -> None:
        """Stop following storages."""
        self._alive.clear()

    def finish(self, modules: tuple[str, ...], borrowed_bytes: list[int]) -> AllocationLog:
        """Return the log; ``borrowed_bytes`` are the sizes of borrowed memory by kind."""
        storage = np.array(self._storage, dtype=np.int64)
        size_bytes = np.array(self._size, dtype=np.int64)
        for number, kind in self._borrowed:
            size_bytes[number] = borrowed_bytes[kind]
        delta_bytes = np.sign(np.array(self._delta, dtype=np.int64)) * size_bytes[storage]
        kept = delta_bytes != 0
        return AllocationLog(
            storage=storage[kept],
            delta_bytes=delta_bytes[kept],
            phase=np.array(self._phase, dtype=np.uint8)[kept],
            size_bytes=size_bytes,
            category=np.array(self._category, dtype=np.uint8),
            birth_phase=np.array(self._birth_phase, dtype=np.uint8),
            module=np.array(self._module, dtype=np.int32),
            operation=np.array(self._operation, dtype=np.int32),
            modules=modules,
        )

    def _allocate(self, nbytes: int, module: int, operation: int) -> int:
        number = len(self._size)
        self._size.append(nbytes)
        self._category.append(_TEMPORARY)
        self._birth_phase.append(self.phase)
        self._module.append(module)
        self._operation.append(operation)
        if nbytes:
            self._write(number, nbytes)
        return number

    def _free(self, address: int) -> None:
        number, _ = self._alive.pop(address)
        if self._size[number]:
            self._write(number, -self._size[number])

    def _write(self, number: int, delta_bytes: int) -> None:
        self._storage.append(number)
        self._delta.append(delta_bytes)
        self._phase.append(self.phase)
