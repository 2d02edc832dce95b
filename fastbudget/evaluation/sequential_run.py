"""One comparison under way: draws, pairs and decides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..core.interval import Interval
from ..metrics import MetricValue
from ..stats import SequentialPairedTest
from .example_data import Batch, ExampleSet, Indices
from .paired_baseline import BaselineRuns, PairedBaseline
from .records import EvaluationProgress, EvaluationRecord
from .scoring import Scoring
from .verdict import Verdict

FloatArray = npt.NDArray[np.float64]
_INTERVAL_EVERY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a comparison asks: is the candidate better or worse, or with a margin, not worse by more than that?

    ``bounds`` are those of one score; scores where less is better are turned round inside.
    """

    metric: str
    higher_is_better: bool
    bounds: tuple[float, float]
    margin: float
    alpha: float
    num_devices: int
    start: float = field(default_factory=time.perf_counter)

    def turned(self, scores: FloatArray) -> FloatArray:
        """Return scores so that more is better."""
        return scores if self.higher_is_better else -scores

    def check(self, batch: Batch, scores: FloatArray) -> None:
        """Raise InvalidInputError for a score outside the bounds, on which the test's validity rests."""
        low, high = self.bounds
        outside = np.flatnonzero((scores < low - 1e-9) | (scores > high + 1e-9))
        if len(outside):
            raise InvalidInputError(
                f"{self.metric} of example {batch.indices[outside[0]]} is {scores[outside[0]]:g}, outside its bounds "
                f"[{low:g}, {high:g}]: give value_range=(low, high) that no example's value can leave."
            )

    def equal_without_running(self, population_size: int) -> Verdict:
        """Return the verdict on a candidate whose content is the baseline's."""
        seconds = time.perf_counter() - self.start
        return Verdict(
            decision="equal",
            metric=self.metric,
            difference=Interval(0.0, 0.0, 0.0),
            p_value=None,
            alpha=self.alpha,
            margin=self.margin,
            num_examples=population_size,
            population_size=population_size,
            num_predicted=0,
            num_baseline_predicted=0,
            seconds=seconds,
            device_seconds=seconds * self.num_devices,
            reason="the candidate is the baseline: its content is identical, so the stored results are its own",
        )


class SequentialRun:
    """Feeds a sequential paired test.

    Args:
        question: What is asked.
        examples: The data set.
        population: int64 [N], the examples compared on, in an order that their content decides.
        paired: The baseline's scores of these.
        flips: float64 [N], how likely each score is to change; None: drawn uniformly.
        groups: int64 [N], equal for examples that belong together; None: each is alone.
        gaps: Runs the baseline where it has no score; None: it has all.
        seed: Of the draw.
        batch_size: Examples per look.
    """

    def __init__(
        self,
        question: Question,
        examples: ExampleSet,
        population: Indices,
        paired: PairedBaseline,
        *,
        flips: FloatArray | None,
        groups: npt.NDArray[np.int64] | None,
        gaps: BaselineRuns | None,
        seed: int,
        batch_size: int,
    ) -> None:
        self._question = question
        self._examples = examples
        self._population = population
        self._paired = paired
        self._gaps = gaps
        self._batch_size = batch_size
        self._place_of = np.zeros(len(examples), np.int64)
        self._place_of[population] = np.arange(len(population))
        low, high = question.bounds if question.higher_is_better else (-question.bounds[1], -question.bounds[0])
        complete = bool(paired.is_known.all())
        # With gaps the baseline isn't known beforehand: the test is on the differences themselves.
        self._test = SequentialPairedTest(
            len(population),
            baseline=question.turned(paired.scores) if complete else None,
            flip_probability=flips,
            margin_low=-question.margin,
            margin_high=-question.margin,
            alpha=question.alpha,
            value_range=(low - high, high - low),
            score_range=(low, high) if complete else None,
            seed=seed,
            clusters=groups,
        )
        self._takes_scores = complete
        self._interval: tuple[float, float] = (low - high, high - low)
        self._interval_at = 0.0

    def batches(self) -> Iterator[Batch]:
        """Yield what is drawn, until all is."""
        while len(places := self._test.next_batch(self._batch_size)):
            yield self._examples.take(self._population[places])

    def tell(self, batch: Batch, scores: FloatArray) -> None:
        """Take the candidate's scores of a batch."""
        self._question.check(batch, scores)
        places = self._place_of[batch.indices]
        values = self._question.turned(scores)
        if not self._takes_scores:
            assert self._gaps is not None
            values = values - self._question.turned(self._gaps.complete(batch, self._paired.scores[places]))
        self._test.update(places, values)

    @property
    def is_decided(self) -> bool:
        """Whether the answer is certain."""
        return self._test.decision != "undecided"

    def progress(self, scoring: Scoring) -> EvaluationProgress:
        """Return how it stands; the interval is computed twice a second at most."""
        now = time.perf_counter()
        if now - self._interval_at > _INTERVAL_EVERY_S:
            self._interval, self._interval_at = self._test.interval(), now
        return EvaluationProgress(
            num_examples=scoring.num_examples,
            planned=len(self._population),
            metric=self._question.metric,
            value=self._test.estimate,
            low=self._interval[0],
            high=self._interval[1],
            seconds=now - self._question.start,
        )

    def verdict(self, scoring: Scoring, candidate: dict[str, Any], *, limit_reached: bool) -> Verdict:
        """Return the verdict.

        Args:
            scoring: The candidate's.
            candidate: Content hashes and the like for its record.
            limit_reached: Whether that ended it.
        """
        question, size = self._question, len(self._population)
        low, high = self._test.interval()
        middle = self._test.estimate
        difference = Interval(low, min(max(low if middle is None else middle, low), high), high)
        complete = self._test.num_evaluated == size
        decision = self._decision(difference)
        if complete:
            reason = "every example was evaluated"
        elif limit_reached:
            reason = "the limit was reached"
        else:
            reason = f"the answer is certain, with error at most {question.alpha:g}"
        seconds = time.perf_counter() - question.start
        device_seconds = seconds * question.num_devices
        return Verdict(
            decision=decision,
            metric=question.metric,
            difference=difference,
            p_value=None if complete else self._test.p_value,
            alpha=question.alpha,
            margin=question.margin,
            num_examples=scoring.num_examples,
            population_size=size,
            num_predicted=scoring.num_examples - scoring.num_cached,
            num_baseline_predicted=0 if self._gaps is None else self._gaps.num_predicted,
            seconds=seconds,
            device_seconds=device_seconds,
            reason=reason,
            candidate=EvaluationRecord(
                values=self._candidate_values(difference, scoring.num_examples),
                num_examples=scoring.num_examples,
                seconds=seconds,
                population_size=size,
                device_seconds=device_seconds,
                tier="comparison",
                decided=complete or decision != "undecided",
                stop_reason="complete" if complete else "limit" if limit_reached else "decided",
                num_cached=scoring.num_cached,
                num_nan=scoring.num_nan,
                examples=scoring.examples(),
                **candidate,
            ),
        )

    def _decision(self, difference: Interval) -> str:
        """Name what is certain. The interval inverts the test's own bets, so that all claims share one alpha."""
        decided = self._test.decision
        if decided == "undecided" or decided == "worse":
            return decided
        if self._question.margin == 0:
            return decided
        return "better" if difference.low > 0 else "not_worse"

    def _candidate_values(self, difference: Interval, count: int) -> dict[str, MetricValue]:
        if not self._takes_scores:
            return {}
        base = float(self._paired.scores.mean())
        ends = (difference.low, difference.mid, difference.high)
        low, value, high = sorted(base + (end if self._question.higher_is_better else -end) for end in ends)
        method = f"baseline + betting on the difference, for all {len(self._population):,} examples (exact)"
        return {
            self._question.metric: MetricValue(
                value=value,
                low=low,
                high=high,
                confidence=1 - self._question.alpha,
                method=method,
                num_examples=count,
            )
        }
