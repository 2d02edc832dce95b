"""Is the value on the whole data set above or below a number? Asked of a growing random sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError, did_you_mean, one_of
from ..metrics import Metric
from ..stats import SequentialPairedTest

_WORDS = {"better": "above", "worse": "below"}


@dataclass(kw_only=True)
class ThresholdTests:
    """One-sample sequential tests that share one random draw.

    Args:
        thresholds: By metric.
        ranges: Bounds of the metrics' values of single examples.
        alpha: Chance of any wrong decision; each test gets an equal part of it.
        seed: Of the draw.
    """

    thresholds: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    alpha: float
    seed: int
    _tests: dict[str, Any] = field(default_factory=dict)

    def start(self, population_size: int, groups: npt.NDArray[np.int64] | None) -> None:
        """Begin with a data set of so many examples; those of one group, int [N], are drawn together."""
        for name, threshold in self.thresholds.items():
            self._tests[name] = SequentialPairedTest(
                population_size,
                margin_low=threshold,
                margin_high=threshold,
                alpha=self.alpha / len(self.thresholds),
                value_range=self.ranges[name],
                seed=self.seed,
                clusters=groups,
            )

    def draw(self, size: int) -> npt.NDArray[np.int64]:
        """Return the places of the next examples, int64 [≤ size]."""
        drawn = [test.next_batch(size) for test in self._tests.values()]
        assert all(np.array_equal(drawn[0], other) for other in drawn[1:])
        return np.asarray(drawn[0], np.int64)

    def tell(self, places: npt.NDArray[np.int64], scores: Mapping[str, npt.NDArray[np.float64]]) -> None:
        """Take the scores of drawn examples."""
        for name, test in self._tests.items():
            test.update(places, scores[name])

    @property
    def decisions(self) -> dict[str, str]:
        """``"above"``, ``"below"``, ``"equal"`` or ``"undecided"`` by metric."""
        return {name: _WORDS.get(test.decision, test.decision) for name, test in self._tests.items()}

    @property
    def is_decided(self) -> bool:
        """Whether every test is."""
        return "undecided" not in self.decisions.values()

    def interval(self, name: str) -> tuple[float, float]:
        """Return the anytime-valid interval of a metric's value on the whole data set."""
        low, high = self._tests[name].interval()
        return float(low), float(high)


def thresholds_of(
    thresholds: Mapping[str, float], metrics: Mapping[str, Metric[Any]], *, alpha: float, seed: int
) -> ThresholdTests | None:
    """Return the tests, or None where no threshold was asked for.

    Raises:
        InvalidInputError: a metric isn't evaluated, or isn't a mean of bounded values of single examples.
    """
    if not thresholds:
        return None
    ranges = {}
    for name, threshold in thresholds.items():
        if name not in metrics:
            raise InvalidInputError(
                f"thresholds names {name!r}, which is not among the metrics {one_of(metrics)}."
                f"{did_you_mean(name, metrics)}"
            )
        bounds = metrics[name].example_range
        if not metrics[name].is_mean or bounds is None:
            raise InvalidInputError(
                f"A threshold can be decided early for means of bounded values, such as accuracy; {name!r} isn't one. "
                "Evaluate it in full."
            )
        if not bounds[0] < threshold < bounds[1]:
            raise InvalidInputError(f"thresholds[{name!r}] must be inside {bounds}, got {threshold}.")
        ranges[name] = bounds
    return ThresholdTests(thresholds=dict(thresholds), ranges=ranges, alpha=alpha, seed=seed)
