"""A state that keeps a few numbers per example: what most metrics need, and what intervals resample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError


def check_ids(ids: Any, n: int) -> npt.NDArray[Any]:
    """Return ids as an array [n] of integers, text or bytes; uint8 [n, width], hashes say, is n of them."""
    array = np.asarray(ids.detach().cpu() if hasattr(ids, "detach") else ids)
    if array.ndim == 2 and array.dtype == np.uint8:
        array = np.ascontiguousarray(array).view(f"S{array.shape[1]}")[:, 0]
    if array.ndim != 1 or len(array) != n or (n and array.dtype.kind not in "iuUS"):
        raise InvalidInputError(
            f"ids must be one integer or text per example, {n} of them; got shape {list(array.shape)} of {array.dtype}."
        )
    return array


@dataclass(kw_only=True)
class ExampleRows:
    """Numbers per example, float64 [n, columns], in the order they were added.

    Kept in the pieces they came in, so that many small batches cost no copying.
    """

    columns: int
    pieces: list[npt.NDArray[Any]] = field(default_factory=list)
    ids: list[npt.NDArray[Any]] | None = None

    def append(self, rows: npt.NDArray[Any], ids: Any = None) -> None:
        """Add rows [n, columns], with an id each or none."""
        self._same_kind(ids is not None)
        if ids is not None:
            self.ids = [*(self.ids or []), check_ids(ids, len(rows))]
        if len(rows):
            self.pieces.append(rows)

    def merged(self, other: ExampleRows) -> ExampleRows:
        """Return the rows of both."""
        if self.pieces and other.pieces:
            self._same_kind(other.ids is not None)
        columns = other.columns if other.pieces else self.columns
        ids = None if self.ids is None and other.ids is None else [*(self.ids or []), *(other.ids or [])]
        return ExampleRows(columns=columns, pieces=[*self.pieces, *other.pieces], ids=ids)

    def rows(self) -> npt.NDArray[Any]:
        """Return all rows, each id once.

        Raises:
            InvalidInputError: an id came with different values.
        """
        if not self.pieces:
            return np.zeros((0, self.columns))
        if len(self.pieces) > 1:
            self.pieces[:] = [np.concatenate(self.pieces)]
        rows = self.pieces[0]
        return rows if self.ids is None else rows[self._first_of_each(rows)]

    def _first_of_each(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        kinds = {piece.dtype.kind in "iu" for piece in self.ids or [] if len(piece)}
        if len(kinds) > 1:
            raise InvalidInputError("ids are numbers in one batch and text in another; use one kind.")
        ids = np.concatenate(self.ids or [])
        _, first, group = np.unique(ids, return_index=True, return_inverse=True)
        kept = rows[first][group]
        different = ~((rows == kept) | ((rows != rows) & (kept != kept))).all(axis=1)  # NaN equals NaN here
        if different.any():
            raise InvalidInputError(
                f"The example with id {ids[int(np.flatnonzero(different)[0])]!r} came twice, with different values. "
                "Ids must be unique in the data set, and every shard must come from the same model."
            )
        return np.sort(first)

    def _same_kind(self, with_ids: bool) -> None:
        if self.pieces and (self.ids is not None) != with_ids:
            raise InvalidInputError("Give ids with every batch or with none: examples without one can't be told apart.")
