"""The operations of a traced step: what each computes and how many bytes it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .allocation_log import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class OperationTable:
    """One row for each operation that ran, in order (N rows); views, which do no work, are left out.

    Attributes:
        name: int32 [N], an index into ``names`` (such as ``aten.mm.default``).
        dtype: int32 [N], data type of the first output, an index into ``dtypes`` (such as ``bfloat16``).
        module: int32 [N], the module whose forward, or whose backward, ran it, an index into ``modules``.
        phase: uint8 [N], an index into ``PHASES``.
        step: uint8 [N], 0 for the first training step, 1 for the steady one.
        flops: int64 [N], floating-point operations, a multiply-add being two.
        moved_bytes: int64 [N], bytes read and written, each tensor counted once.
        product: int64 [N, 4], batch, m, n and k of the matrix products in it (see ``product_shape``); zeros for none.
        recomputed: bool [N], whether it ran in the backward pass to make an activation again.
    """

    name: NDArray[np.int32]
    dtype: NDArray[np.int32]
    module: NDArray[np.int32]
    phase: NDArray[np.uint8]
    step: NDArray[np.uint8]
    flops: NDArray[np.int64]
    moved_bytes: NDArray[np.int64]
    product: NDArray[np.int64]
    recomputed: NDArray[np.bool_]
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    modules: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.name)

    def flops_in(self, *phases: str, step: int) -> int:
        """Return the floating-point operations of the named phases in one step."""
        return int(self.flops[self._rows_in(phases, step)].sum())

    def moved_bytes_in(self, *phases: str, step: int) -> int:
        """Return the bytes that the operations of the named phases read and write in one step."""
        return int(self.moved_bytes[self._rows_in(phases, step)].sum())

    def count_in(self, *phases: str, step: int) -> int:
        """Return how many operations ran in the named phases of one step."""
        return int(self._rows_in(phases, step).sum())

    def _rows_in(self, phases: Sequence[str], step: int) -> NDArray[np.bool_]:
        wanted = [PHASES.index(phase) for phase in phases]
        return np.isin(self.phase, wanted) & (self.step == step)
