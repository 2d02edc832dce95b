"""What every metric can do: a mergeable state, a result, an interval, and a value per example where there is one."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError

State = TypeVar("State")
FloatArray = npt.NDArray[np.float64]


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

    Attributes:
        name: What it is registered under.
        task: ``"classification"``, ``"summarization"``, …
        higher_is_better: Direction.
        version: Raised whenever the same input may give another value.
        is_mean: Whether the result is the mean of `per_example`.
        example_range: Bounds of a value of `per_example`; None: unbounded.
    """

    name: str = ""
    task: str = ""
    higher_is_better: ClassVar[bool] = True
    version: ClassVar[int] = 1
    is_mean: ClassVar[bool] = False
    example_range: ClassVar[tuple[float, float] | None] = None

    @property
    def signature(self) -> str:
        """Name, version and options: values with equal signatures may be compared.

        Options are the constructor's keywords, read from the attributes of the same names. ``threads`` changes no
        value and is left out.
        """
        options = [name for name in inspect.signature(type(self)).parameters if name != "threads"]
        parts = [self.name or type(self).__name__, f"version:{self.version}"]
        return "|".join(parts + [f"{name}:{_option_text(getattr(self, name, None))}" for name in options])

    @abstractmethod
    def init(self) -> State:
        """Return the state of no examples."""

    @abstractmethod
    def update(self, state: State, predictions: Any, references: Any, ids: Any = None) -> State:
        """Add a batch; returns the new state, which may be the old one changed in place.

        Args:
            state: From `init`, `update` or `merge`.
            predictions: As the metric takes them.
            references: As many.
            ids: One per example, int or text: an example seen twice (distributed padding, overlapping shards) counts
                once. The same id with another value is an error.
        """

    @abstractmethod
    def merge(self, a: State, b: State) -> State:
        """Return the state of both sets of examples; ``a`` and ``b`` stay as they are."""

    @abstractmethod
    def result(self, state: State) -> Any:
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

    def per_example(self, predictions: Any, references: Any) -> FloatArray:
        """Return each example's own value, float64 [n].

        Raises:
            InvalidInputError: the metric is defined on a whole set only.
        """
        raise InvalidInputError(
            f"{self.name or type(self).__name__} is a value of the whole set: it has none per example. "
            "Use a metric of single examples (accuracy, say) where one is needed."
        )

    def __call__(self, predictions: Any, references: Any) -> Any:
        """Return the value over everything given."""
        return self.result(self.update(self.init(), predictions, references))


class BatchMetric(Metric[State]):
    """A metric that reads its input in a step that other metrics of the same `input_key` can share."""

    @property
    @abstractmethod
    def input_key(self) -> Hashable:
        """Equal for metrics whose `read` gives the same."""

    @property
    def state_key(self) -> Hashable:
        """Equal for metrics whose states are the same; None: the state is this metric's own."""
        return None

    @abstractmethod
    def read(self, predictions: Any, references: Any) -> Any:
        """Return the checked batch; raises InvalidInputError."""

    @abstractmethod
    def add(self, state: State, batch: Any, ids: Any = None) -> State:
        """Add a batch from `read`."""

    def update(self, state: State, predictions: Any, references: Any, ids: Any = None) -> State:
        """Add a batch; see `Metric.update`."""
        return self.add(state, self.read(predictions, references), ids)


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(getattr(value, "__name__", value))
