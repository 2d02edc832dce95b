"""Resampling of a confusion matrix, for intervals of what is counted from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._native import Counts
from .label_counts import Margins

# Errors and successes that resampling adds, as Wilson's interval does for a proportion: a class without errors in the
# sample still has some in the world.
_PSEUDO_ERRORS = 2.0


class ResampledConfusion:
    """The cells of a confusion matrix that hold examples: the cost of a resample follows them, not C².

    One more category stands for the pseudo-examples: of a class drawn by its frequency among the references, half of
    them right and half predicted as another class seen.

    Attributes:
        counts: int64 [K + 1], examples per cell, then 0 for the pseudo-examples.
        pseudo_counts: float64 [K + 1], what resampling adds to them.
    """

    def __init__(self, matrix: Counts) -> None:
        rows, columns = np.nonzero(matrix)
        # Classes never seen don't count anywhere; a matrix of two is kept whole, for the binary average.
        self._classes = np.arange(len(matrix)) if len(matrix) <= 2 else np.union1d(rows, columns)
        self._rows, self._columns = (np.searchsorted(self._classes, labels) for labels in (rows, columns))
        self._seen = np.union1d(self._rows, self._columns)
        self._share = (matrix.sum(1) / matrix.sum())[self._classes]
        self._generator = np.random.default_rng(0)
        self.counts = np.append(matrix[rows, columns], 0)
        self.pseudo_counts = np.zeros(len(self.counts))
        if len(self._seen) > 1:
            self.pseudo_counts[-1] = 2 * _PSEUDO_ERRORS

    def margins(self, drawn: Counts) -> Margins:
        """Return margins [..., C] of counts per cell [..., K + 1]."""
        cells = drawn[..., :-1].reshape(-1, len(self._rows))
        shape = (*drawn.shape[:-1], len(self._classes))
        resample = np.repeat(np.arange(len(cells)), drawn[..., -1].ravel())
        rows, columns = self._pseudo_examples(len(resample))

        def per_class(labels: Counts, weights: Counts, extra: Counts, chosen: Any = slice(None)) -> Counts:
            where = np.arange(len(cells))[:, None] * shape[-1] + labels
            size = len(cells) * shape[-1]
            real = np.bincount(where.ravel(), weights.ravel(), size)
            pseudo = np.bincount((resample * shape[-1] + extra)[chosen], minlength=size)
            return (real + pseudo).astype(np.int64).reshape(shape)

        right = self._rows == self._columns
        return Margins(
            per_class(self._rows[right], cells[:, right], rows, rows == columns),
            per_class(self._columns, cells, columns),
            per_class(self._rows, cells, rows),
            drawn.sum(-1),
        )

    def _pseudo_examples(self, n: int) -> tuple[Counts, Counts]:
        rows = self._generator.choice(len(self._share), n, p=self._share)
        if n == 0:
            return rows, rows
        other = self._generator.integers(0, len(self._seen) - 1, n)
        other += other >= np.searchsorted(self._seen, rows)
        return rows, np.where(self._generator.random(n) < 0.5, rows, self._seen[other])
