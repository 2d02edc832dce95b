"""What an evaluation found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..metrics import MetricValue
from ..metrics.paired_sums import Contributions

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleScores:
    """Results per example: what a later comparison is paired with.

    Args:
        hashes: uint8 [n, 16], content hashes.
        scores: float64 [n] per metric that has values of single examples, by the metric's name.
        signatures: The metrics' signatures by name: scores of different signatures aren't comparable.
        margins: float32 [n], how sure each classification was; None where predictions weren't class scores.
        contributions: To metrics of the whole set, by name; not kept in a store.
    """

    hashes: npt.NDArray[np.uint8]
    scores: dict[str, FloatArray]
    signatures: dict[str, str]
    margins: npt.NDArray[np.float32] | None = None
    contributions: dict[str, Contributions] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, kw_only=True)
class EvaluationProgress:
    """How an evaluation stands after a batch.

    ``value`` with its interval is that of ``metric`` on the ``num_examples`` of ``planned`` scored so far; None where
    no metric has values of single examples. The interval is no ground to stop: use ``thresholds`` for that.
    """

    num_examples: int
    planned: int | None
    metric: str | None
    value: float | None
    low: float | None
    high: float | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """What was measured: a value with interval per metric, on how many examples, at what cost.

    Args:
        values: By metric.
        num_examples: Scored, n.
        seconds: Wall time.
        population_size: Examples in the data set, N; None for a loader that was stopped.
        device_seconds: Wall time times the devices held, busy or not.
        tier: The policy's name.
        decided: Whether it settles what was asked: all examples are scored, or every threshold is decided.
        decisions: ``"above"``, ``"below"``, ``"equal"`` or ``"undecided"`` per threshold.
        stop_reason: ``"complete"``: every example was scored; ``"sample"``: the tier's sample was; ``"decided"``;
            ``"limit"``: the tier's limit.
        num_cached: Examples taken from the store instead of the model.
        num_nan: Predictions that were not a number and counted as wrong.
        num_duplicates: Examples named twice by ``data.ids``, counted once.
        data_hash: Content of the whole data set, in any order; None where it isn't known.
        model_hash: Content of the model; None where it isn't known.
        preprocessing: The fingerprint that was given.
        store_id: The record's number in the store.
        examples: Results per example; None where contents have no hash.
    """

    values: dict[str, MetricValue]
    num_examples: int
    seconds: float
    population_size: int | None = None
    device_seconds: float = 0.0
    tier: str = "full"
    decided: bool = True
    decisions: dict[str, str] = field(default_factory=dict)
    stop_reason: str = "complete"
    num_cached: int = 0
    num_nan: int = 0
    num_duplicates: int = 0
    data_hash: str | None = None
    model_hash: str | None = None
    preprocessing: str = ""
    store_id: int | None = None
    examples: ExampleScores | None = field(default=None, repr=False, compare=False)

    def __getitem__(self, name: str) -> MetricValue:
        return self.values[name]

    @property
    def n(self) -> int:
        """Examples scored."""
        return self.num_examples

    @property
    def N(self) -> int | None:  # noqa: N802
        """Examples in the data set."""
        return self.population_size

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data, metrics at the top level; results per example are left out."""
        facts = {name: getattr(self, name) for name in _FACTS}
        return {name: value.to_json() for name, value in self.values.items()} | facts


_FACTS = (
    "num_examples",
    "population_size",
    "seconds",
    "device_seconds",
    "tier",
    "decided",
    "decisions",
    "stop_reason",
    "num_cached",
    "num_nan",
    "num_duplicates",
    "data_hash",
    "model_hash",
    "preprocessing",
    "store_id",
)
