"""The compiled module: one block per domain."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_Labels = npt.NDArray[Any]
_Counts = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float64]

# counting
def count_classes(
    predictions: _Labels, references: _Labels, num_classes: int = 0, threads: int = 0
) -> tuple[_Counts, _Counts, _Counts]: ...
def add_confusion(predictions: _Labels, references: _Labels, confusion: _Counts, threads: int = 0) -> None: ...
def label_range(labels: _Labels, threads: int = 0) -> tuple[int, int]: ...

# ranking
def roc_area(scores: _Numbers, labels: npt.NDArray[np.uint8], threads: int = 0) -> float: ...
def average_precision(scores: _Numbers, labels: npt.NDArray[np.uint8], threads: int = 0) -> float: ...
def average_ranks(values: _Numbers) -> _Numbers: ...

# text
_Ids = npt.NDArray[np.int32]

def tokenize(
    texts: list[str], rule: str, lowercase: bool = False, stem: bool = False, stem_above: int = 3, threads: int = 0
) -> tuple[_Ids, _Counts, int]: ...
def porter_stem(word: str) -> str: ...
def ngram_overlap(
    ids: _Ids, hypotheses: _Counts, references: _Counts, first_reference: _Counts, max_order: int, threads: int = 0
) -> _Counts: ...
def common_subsequences(
    ids: _Ids, hypotheses: _Counts, references: _Counts, first_reference: _Counts, threads: int = 0
) -> _Counts: ...
def edit_distances(
    ids: _Ids, hypotheses: _Counts, references: _Counts, first_reference: _Counts, threads: int = 0
) -> _Counts: ...
def meteor_alignments(
    ids: _Ids, stems: _Ids, hypotheses: _Counts, references: _Counts, first_reference: _Counts, threads: int = 0
) -> _Counts: ...
def union_subsequences(
    ids: _Ids,
    hypotheses: _Counts,
    references: _Counts,
    hypothesis_sentences: _Counts,
    reference_sentences: _Counts,
    threads: int = 0,
) -> _Counts: ...

# devices
def report_cuda() -> dict[str, Any]: ...
def default_threads() -> int: ...

# statistics
def bootstrap_sums(
    values: _Numbers, starts: _Counts, first: int, resamples: int, seed: int, threads: int = 0
) -> _Numbers: ...
def bootstrap_indices(
    values: _Numbers, starts: _Counts, first: int, resamples: int, seed: int, threads: int = 0
) -> _Counts: ...
def picked_sums(values: _Numbers, first: int, rounds: int, seed: int, threads: int = 0) -> _Numbers: ...

class SequentialTest:
    consumed: int
    total: float
    least_total: float
    greatest_total: float
    wealth_above: float
    wealth_below: float
    decision: int
    decided_after: int

    def __init__(
        self,
        *,
        weights: _Numbers,
        low: _Numbers,
        high: _Numbers,
        expected: _Numbers,
        seed: int,
        bet_fractions: Sequence[float],
        bet_shares: Sequence[float],
        threshold: float,
        margin_low: float,
        margin_high: float,
    ) -> None: ...
    def order(self) -> _Counts: ...
    def consume(self, values: _Numbers) -> None: ...
    def lower_bound(self) -> float: ...
    def upper_bound(self) -> float: ...

# allocator
def replay_allocations(
    storage: _Counts,
    delta_bytes: _Counts,
    *,
    expandable_segments: bool = False,
    max_split_size_bytes: int = -1,
    capacity_bytes: int = -1,
    roundup_power2_divisions: int | tuple[int, ...] = 0,
    max_non_split_rounding_bytes: int = ...,
    large_segment_bytes: int = ...,
    timeline: bool = False,
    addresses: bool = False,
) -> dict[str, Any]: ...

# tokens
def permute_range(size: int, seed: int, epoch: int, begin: int, end: int, threads: int = 0) -> _Counts: ...

class TokenFile:
    def __init__(self, path: str, type: str, offset: int = 0, vocab_size: int = 0) -> None: ...
    def read_window(self, first: int, length: int) -> tuple[_Counts, _Counts]: ...
    def check(self, count: int, threads: int = 0) -> None: ...

class TokenBatches:
    def __init__(
        self,
        *,
        file: TokenFile,
        seq_len: int,
        windows: int,
        batch_size: int,
        start: int,
        rank: int,
        world_size: int,
        seed: int,
        prefetch: int,
    ) -> None: ...
    def next(self) -> tuple[_Counts, _Counts]: ...

# scoring
def update_row_scores(
    logits: int,
    type: int,
    rows: int,
    columns: int,
    row_stride: int,
    first_column: int,
    targets: int,
    scores: int,
    threads: int = 0,
) -> None: ...
def logit_gradients(
    logits: int,
    type: int,
    rows: int,
    columns: int,
    row_stride: int,
    first_column: int,
    targets: int,
    logsumexp: int,
    probability: int,
    target: int,
    softcap: float = 0.0,
    threads: int = 0,
) -> None: ...
