"""How much a metric drops when inputs are perturbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..core.errors import InvalidInputError
from .inputs import is_tensor, to_numpy
from .metric_protocol import Metric
from .perturbations import perturb
from .registered import get
from .resampling import resampled_rows_interval, resampled_sums_interval
from .text_batches import as_list


@dataclass(frozen=True, kw_only=True)
class RobustnessResult:
    """A metric on clean and on perturbed inputs; a positive ``drop`` is worse, whichever way the metric points.

    ``low`` and ``high`` are a bootstrap interval of the drop, paired by example (approximate).
    """

    perturbation: str
    clean: float
    perturbed: float
    drop: float
    low: float
    high: float
    confidence: float
    num_examples: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def measure_robustness(
    predict: Callable[[Any], Any],
    inputs: Any,
    references: Any,
    metric: str | Metric[Any],
    perturbations: Sequence[str],
    *,
    strength: float = 1.0,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[RobustnessResult]:
    """Return the drop of a metric under each perturbation, with its interval.

    Args:
        predict: ``predict(inputs) -> predictions`` of all inputs at once, as the metric takes them.
        inputs: Images [n, …, H, W] or a list of texts.
        references: n of them.
        metric: A name, or a metric.
        perturbations: Names; see `perturbations.perturb`.
        strength: Multiplies every change.
        confidence: Of the intervals.
        seed: Of the changes and the resampling.

    Raises:
        InvalidInputError: no perturbation, an unknown one, or what the metric refuses.
    """
    if isinstance(perturbations, str) or not perturbations:
        raise InvalidInputError("perturbations must be a list of one name or more.")
    metric = get(metric) if isinstance(metric, str) else metric
    clean = predict(inputs)
    results = []
    for name in perturbations:
        changed = predict(perturb(inputs, name, strength=strength, seed=seed))
        before, after = float(metric(clean, references)), float(metric(changed, references))
        sign = 1 if metric.higher_is_better else -1
        drop = sign * (before - after)
        low, high = _interval(metric, clean, changed, references, drop, sign, confidence, seed)
        results.append(
            RobustnessResult(
                perturbation=name,
                clean=before,
                perturbed=after,
                drop=drop,
                low=low,
                high=high,
                confidence=confidence,
                num_examples=len(references),
            )
        )
    return results


def _interval(
    metric: Metric[Any],
    clean: Any,
    changed: Any,
    references: Any,
    drop: float,
    sign: int,
    confidence: float,
    seed: int,
) -> tuple[float, float]:
    if metric.is_mean:
        differences = sign * (metric.per_example(clean, references) - metric.per_example(changed, references))
        return resampled_sums_interval(
            differences[:, None],
            lambda sums: np.asarray(sums[:, 0] / sums[:, 1]),
            drop,
            confidence=confidence,
            seed=seed,
        )

    def statistic(drawn: Any) -> float:
        wanted = _taken(references, drawn)
        try:
            return sign * float(metric(_taken(clean, drawn), wanted) - metric(_taken(changed, drawn), wanted))
        except InvalidInputError:  # undefined on this resample: one class only, say
            return float("nan")

    return resampled_rows_interval(
        np.arange(len(references)), statistic, drop, confidence=confidence, seed=seed, resamples=400
    )


def _taken(values: Any, indices: Any) -> Any:
    if is_tensor(values) or isinstance(values, np.ndarray):
        return to_numpy(values)[indices]
    entries = as_list(values, "values")
    return [entries[i] for i in indices]
