"""How thoroughly to evaluate: policies by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..core.budget import Budget
from ..core.errors import InvalidInputError, did_you_mean, one_of


@dataclass(frozen=True, kw_only=True)
class Tier:
    """What an evaluation may look at, and when it must end.

    The sample is random, without replacement, and drawn by the examples' content and the seed: the same whatever the
    order of the data set, and mostly the same after it grew.

    Args:
        name: Stands in records.
        num_examples: Sample size; all examples where the data set is smaller. None: all, or ``fraction``.
        fraction: Sample size as a share of the data set, in (0, 1]; instead of ``num_examples``.
        stratified: Draw from each class in proportion. The intervals stay those of a plain sample: too wide, not too
            narrow.
        seed: Of the draw.
        metrics: Names of this tier's metrics; None: those the call names.
        limit: What it may spend at most; it ends before a batch that would go beyond it.

    Raises:
        InvalidInputError: a size that isn't one.
    """

    name: str
    num_examples: int | None = None
    fraction: float | None = None
    stratified: bool = False
    seed: int = 0
    metrics: tuple[str, ...] | None = None
    limit: Budget | None = None

    def __post_init__(self) -> None:
        if self.num_examples is not None and self.fraction is not None:
            raise InvalidInputError(f"Tier {self.name!r}: give num_examples or fraction, not both.")
        if self.num_examples is not None and self.num_examples < 1:
            raise InvalidInputError(f"Tier {self.name!r}: num_examples must be at least 1, got {self.num_examples}.")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise InvalidInputError(f"Tier {self.name!r}: fraction must be above 0 and at most 1, got {self.fraction}.")

    def sample_size(self, population_size: int) -> int:
        """Return how many of so many examples are drawn."""
        wanted = population_size
        if self.num_examples is not None:
            wanted = self.num_examples
        elif self.fraction is not None:
            wanted = max(1, round(self.fraction * population_size))
        return min(wanted, population_size)

    @property
    def takes_all(self) -> bool:
        """Whether every example is evaluated, unless a limit ends it."""
        return self.num_examples is None and self.fraction in (None, 1.0)


# An accuracy's 95% interval is at most ±5 points wide at 400 examples and ±2.2 at 2,000, however large the data set.
TIERS: Mapping[str, Tier] = MappingProxyType(
    {
        "quick": Tier(name="quick", num_examples=400),
        "standard": Tier(name="standard", num_examples=2000),
        "full": Tier(name="full"),
    }
)


def resolve_tier(tier: str | Tier) -> Tier:
    """Return a tier by name, or the tier itself."""
    if isinstance(tier, Tier):
        return tier
    if tier not in TIERS:
        raise InvalidInputError(
            f"tier must be one of {one_of(TIERS)} or a Tier, got {tier!r}.{did_you_mean(str(tier), TIERS)}"
        )
    return TIERS[tier]
