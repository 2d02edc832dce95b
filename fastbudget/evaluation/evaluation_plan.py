"""Which examples are evaluated, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..metrics import MetricValue
from ..store.content_hash import Hashes
from .example_data import Batch, ExampleSet, Indices, is_batch_list, is_map_style, streamed_batches
from .sampling import canonical_order, draw_order, stratified_sample
from .scoring import groups_of
from .thresholds import ThresholdTests
from .tiers import Tier

FloatArray = npt.NDArray[np.float64]


class EvaluationPlan:
    """The batches of one evaluation. Made by `make_plan`.

    Attributes:
        population_size: N; None for a stream, until it has ended.
        data_hashes: uint8 [N, 16]; None where nothing needed them.
        num_duplicates: Examples named twice by their ids.
        reason_at_end: Why it stops when nothing stops it before.
    """

    population_size: int | None = None
    data_hashes: Hashes | None = None
    num_duplicates: int = 0
    reason_at_end: str = "complete"

    def __len__(self) -> int:
        """Return how many examples are planned; 0 for a stream."""
        return 0

    def batches(self) -> Iterator[Batch]:
        """Yield the batches, in the order that results count in."""
        raise NotImplementedError

    def tell(self, batch: Batch, scores: Mapping[str, FloatArray]) -> None:
        """Take a batch's scores per example."""

    @property
    def decisions(self) -> dict[str, str]:
        """What is decided about each threshold."""
        return {}

    @property
    def is_decided(self) -> bool:
        """Whether every threshold is decided; False where there is none."""
        return False

    def threshold_values(self, values: Mapping[str, MetricValue]) -> dict[str, MetricValue]:
        """Return the values of metrics with a threshold, with intervals that hold however the evaluation stopped."""
        return {}


class _Stream(EvaluationPlan):
    """Everything, as a loader yields it."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def batches(self) -> Iterator[Batch]:
        return streamed_batches(self._data)


class _Listed(EvaluationPlan):
    """Examples by index, in an order fixed before."""

    def __init__(self, examples: ExampleSet, order: Indices, batch_size: int) -> None:
        self._examples = examples
        self._order = order
        self._batch_size = batch_size

    def __len__(self) -> int:
        return len(self._order)

    def batches(self) -> Iterator[Batch]:
        for start in range(0, len(self._order), self._batch_size):
            yield self._examples.take(self._order[start : start + self._batch_size])


class _Drawn(_Listed):
    """Examples by index, drawn by sequential tests until they are decided or ``size`` were drawn."""

    def __init__(
        self,
        examples: ExampleSet,
        order: Indices,
        batch_size: int,
        tests: ThresholdTests,
        size: int,
        groups: npt.NDArray[np.int64] | None,
    ) -> None:
        super().__init__(examples, order, batch_size)
        self._tests = tests
        self._size = size
        self._place_of = np.zeros(len(examples), np.int64)
        self._place_of[order] = np.arange(len(order))
        tests.start(len(order), None if groups is None else groups_of(groups, order))

    def __len__(self) -> int:
        return self._size

    def batches(self) -> Iterator[Batch]:
        drawn = 0
        while drawn < self._size:
            places = self._tests.draw(min(self._batch_size, self._size - drawn))
            if len(places) == 0:
                return
            drawn += len(places)
            yield self._examples.take(self._order[places])

    def tell(self, batch: Batch, scores: Mapping[str, FloatArray]) -> None:
        self._tests.tell(self._place_of[batch.indices], scores)

    @property
    def decisions(self) -> dict[str, str]:
        return self._tests.decisions

    @property
    def is_decided(self) -> bool:
        return self._tests.is_decided

    def threshold_values(self, values: Mapping[str, MetricValue]) -> dict[str, MetricValue]:
        found = {}
        for name in self._tests.thresholds:
            low, high = self._tests.interval(name)
            value = values[name].value
            found[name] = replace(
                values[name],
                low=min(low, value),
                high=max(high, value),
                method=f"betting, for all {self.population_size:,} examples (exact, valid at any time)",
            )
        return found


def make_plan(
    data: Any,
    tier: Tier,
    *,
    threshold_tests: ThresholdTests | None,
    groups: npt.NDArray[np.int64] | None,
    batch_size: int,
    shard: tuple[int, int] | None,
    collate: Callable[[list[Any]], Any] | None,
) -> EvaluationPlan:
    """Return the plan of an evaluation.

    Nothing is read before it is needed: only a sample, a limit or a threshold, whose order is random by content, reads
    every example first.

    Raises:
        InvalidInputError: the tier needs examples by index and the data has none, or parts contradict each other.
    """
    at_random = not tier.takes_all or tier.limit is not None or threshold_tests is not None
    if shard is not None and threshold_tests is not None:
        raise InvalidInputError("shard and thresholds exclude each other: a decision needs every rank's results.")
    if not at_random and shard is None and (not is_map_style(data) or is_batch_list(data)):
        return _Stream(data)
    examples = ExampleSet(data, collate)
    population = examples.distinct()
    if len(population) == 0:
        raise InvalidInputError("data holds no example to evaluate on.")
    size = tier.sample_size(len(population))
    hashes = examples.hashes()[population] if at_random else None
    plan: EvaluationPlan
    if threshold_tests is not None:
        assert hashes is not None
        if tier.stratified:
            raise InvalidInputError("A stratified sample and thresholds exclude each other: use a plain tier.")
        plan = _Drawn(examples, population[canonical_order(hashes)], batch_size, threshold_tests, size, groups)
    else:
        order = population if hashes is None else population[_sample(examples, population, hashes, tier, size)]
        plan = _Listed(examples, order if shard is None else _share(order, shard), batch_size)
    plan.population_size = len(population)
    plan.data_hashes = hashes
    plan.num_duplicates = len(examples) - len(population)
    plan.reason_at_end = "shard" if shard is not None else "complete" if size == len(population) else "sample"
    return plan


def _sample(examples: ExampleSet, population: Indices, hashes: Hashes, tier: Tier, size: int) -> Indices:
    order = draw_order(hashes, tier.seed)
    if tier.stratified and size < len(population):
        references = examples.references()
        return stratified_sample([references[index] for index in population], order, size, tier.seed)
    return order[:size]


def _share(order: Indices, shard: tuple[int, int]) -> Indices:
    rank, world_size = shard
    if not 0 <= rank < world_size:
        raise InvalidInputError(f"shard must be (rank, world_size) with 0 <= rank < world_size, got {shard}.")
    return order[rank::world_size]
