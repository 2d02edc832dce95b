"""What every metric can do: a mergeable state, a result, and an interval."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

State = TypeVar("State")


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """A metric's value with the interval that says how far a larger sample could move it.

    ``method`` names how the interval was made and whether it is approximate. ``num_examples`` were scored.
    """

    value: float
    low: float
    high: float
    confidence: float
    method: str
    num_examples: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


class Metric(ABC, Generic[State]):
    """One metric. Called on everything at once, or fed batch by batch into a state.

    States merge: any split of the examples over batches, threads or machines gives the same result.
    """

    name: str = ""
    task: str = ""
    higher_is_better: ClassVar[bool] = True

    @abstractmethod
    def init(self) -> State:
        """Return the state of no examples."""

    @abstractmethod
    def update(self, state: State, predictions: Any, references: Any) -> State:
        """Add a batch; returns the new state, which may be the old one changed in place."""

    @abstractmethod
    def merge(self, a: State, b: State) -> State:
        """Return the state of both sets of examples; ``a`` and ``b`` stay as they are."""

    @abstractmethod
    def result(self, state: State) -> float:
        """Return the value; raises InvalidInputError for a state of no examples."""

    @abstractmethod
    def interval(
        self, state: State, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the value with its interval.

        Args:
            state: Of at least one example.
            confidence: Between 0 and 1.
            groups: int [n], equal for examples that belong together; in the order they were added.
        """

    def __call__(self, predictions: Any, references: Any) -> float:
        """Return the value over everything given."""
        return self.result(self.update(self.init(), predictions, references))
