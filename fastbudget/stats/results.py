"""What the fixed-n tools return, each labelled with how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

Exactness = Literal["exact", "asymptotic", "approximate"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ConfidenceInterval:
    """An interval around a value; unpacks as ``low, high``, and equals that tuple.

    ``exactness`` is ``"exact"`` where the stated confidence holds for every n, ``"asymptotic"`` where it holds as n
    grows, ``"approximate"`` where resampling adds an error of its own. ``se`` is the value's standard error.
    """

    low: float
    high: float
    value: float
    se: float
    confidence: float
    method: str
    exactness: Exactness

    def __iter__(self) -> Iterator[float]:
        return iter((self.low, self.high))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return (self.low, self.high)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ConfidenceInterval):
            return asdict(self) == asdict(other)
        return (self.low, self.high) == other

    def __hash__(self) -> int:
        return hash((self.low, self.high))

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """A p-value with the statistic it belongs to; ``exactness`` as in `ConfidenceInterval`."""

    __test__ = False  # not a test of pytest's

    p_value: float
    statistic: float
    method: str
    exactness: Exactness

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)
