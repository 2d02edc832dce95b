"""Device seconds of every operation of a traced step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..trace.allocation_log import PHASES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..trace.operation_table import OperationTable

PARTS = ("forward", "backward", "recompute", "optimizer")
_PART_OF_PHASE = {"forward": 0, "loss": 0, "evaluate": 0, "backward": 1, "optimizer": 3}
# They give memory a name, and cost the host a call.
_NO_WORK = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "alias")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One kind of row of an operation table.

    Attributes:
        name: without namespace and overload, such as ``"mm"``.
        dtype: of its first output, such as ``"bfloat16"``.
        product: batch, m, n and k; zeros for none.
        flops: floating-point operations.
        moved_bytes: read and written.
    """

    name: str
    dtype: str
    product: tuple[int, int, int, int]
    flops: int
    moved_bytes: int


@dataclass(frozen=True, kw_only=True)
class OperationSeconds:
    """Device seconds of the N operations of one step.

    Attributes:
        device_s: float64 [N], what the device needs for each.
        part: int64 [N], an index into ``PARTS``.
        name: [N], as in ``Operation``.
        dtype: [N], as in ``Operation``.
        module: [N], the module that ran it; ``""`` is the model itself, or the optimizer.
    """

    device_s: NDArray[np.float64]
    part: NDArray[np.int64]
    name: tuple[str, ...]
    dtype: tuple[str, ...]
    module: tuple[str, ...]

    def rows_of(self, part: str) -> NDArray[np.bool_]:
        """Return bool [N], which operations belong to a part."""
        return self.part == PARTS.index(part)


def summed_by(keys: tuple[str, ...], seconds: NDArray[np.float64]) -> dict[str, float]:
    """Return the seconds of each key, the most first."""
    totals: dict[str, float] = {}
    for key, value in zip(keys, seconds.tolist(), strict=True):
        totals[key] = totals.get(key, 0.0) + value
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def operation_seconds(
    table: OperationTable, seconds_of: Callable[[Operation], float], *, step: int
) -> OperationSeconds:
    """Time the operations of one step of a trace.

    Args:
        table: the trace's.
        seconds_of: device seconds of an operation; asked once for each kind.
        step: which of the traced steps.
    """
    parts = np.array([_PART_OF_PHASE.get(phase, -1) for phase in PHASES])[table.phase]
    rows = np.flatnonzero((table.step == step) & (parts >= 0))
    part = np.where(table.recomputed[rows], PARTS.index("recompute"), parts[rows])
    names = [name.removeprefix("aten.").split(".")[0] for name in table.names]
    if "native_batch_norm" in names and bool((table.phase[rows] == PHASES.index("evaluate")).any()):
        # In evaluation it scales and shifts; there are no statistics to compute.
        names[names.index("native_batch_norm")] = "batch_norm_inference"
    kinds = np.column_stack([
        table.name[rows], table.dtype[rows], table.flops[rows], table.moved_bytes[rows], table.product[rows]
    ])  # fmt: skip
    distinct, kind_of_row = np.unique(kinds, axis=0, return_inverse=True)
    seconds = np.zeros(len(distinct))
    for index, (name, dtype, flops, moved, batch, m, n, k) in enumerate(distinct.tolist()):
        if names[name] not in _NO_WORK and (moved or flops):
            seconds[index] = seconds_of(
                Operation(
                    name=names[name],
                    dtype=table.dtypes[dtype],
                    product=(batch, m, n, k),
                    flops=flops,
                    moved_bytes=moved,
                )
            )
    return OperationSeconds(
        device_s=seconds[kind_of_row.reshape(-1)] if len(rows) else np.zeros(0),
        part=part.astype(np.int64),
        name=tuple(names[index] for index in table.name[rows]),
        dtype=tuple(table.dtypes[index] for index in table.dtype[rows]),
        module=tuple(table.modules[index] for index in table.module[rows]),
    )
