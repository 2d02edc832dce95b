"""Two finished evaluations compared: nothing is left to run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import InvalidInputError
from ..core.interval import Interval
from ..stats import bootstrap, mcnemar, paired_permutation
from ..store.example_values import unique_examples
from .mean_intervals import is_binary
from .records import EvaluationRecord, ExampleScores
from .verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Generalization:
    """What the difference says of examples that aren't in the data set, if it is a random sample of them.

    ``low`` and ``high`` bound the difference in that population; ``p_value`` is of no difference there.
    """

    low: float
    high: float
    confidence: float
    p_value: float
    method: str


def compare_records(
    baseline: EvaluationRecord,
    candidate: EvaluationRecord,
    metric: str = "accuracy",
    margin: float = 0.0,
    alpha: float = 0.05,
    *,
    higher_is_better: bool = True,
) -> tuple[Verdict, Generalization]:
    """Compare two records of the same data, both complete.

    The verdict is on this data set, and exact. Whether it holds beyond is another question, which the second answer
    is for.

    Args:
        baseline: Every example scored.
        candidate: Likewise.
        metric: With values per example in both.
        margin: See `compare`.
        alpha: Of the generalization's interval, 1 - confidence.
        higher_is_better: Of the metric.

    Raises:
        InvalidInputError: other data, other metrics, or a record of a part.
    """
    start = time.perf_counter()
    first, second = _scores(baseline, metric, "baseline"), _scores(candidate, metric, "candidate")
    if first.signatures[metric] != second.signatures[metric]:
        raise InvalidInputError(
            f"The records were scored differently: {first.signatures[metric]!r} and {second.signatures[metric]!r}."
        )
    other = unique_examples(second.hashes, second.scores[metric], what="candidate", tolerance=np.inf)
    found = other.find(first.hashes)
    shared = int((found >= 0).sum())
    if baseline.data_hash != candidate.data_hash:
        raise InvalidInputError(
            f"The records are of different data sets: {shared} of the baseline's {len(first)} examples are among the "
            f"candidate's {len(second)}. Content decides: ids, references or inputs differ."
        )
    for record, which in ((baseline, "baseline"), (candidate, "candidate")):
        if record.num_examples != record.population_size:
            raise InvalidInputError(
                f"The {which} covers {record.num_examples} of {record.population_size} examples. Evaluate it in full; "
                "or compare with the model itself, module:predict, which runs as many examples as the answer needs."
            )
    turn = 1.0 if higher_is_better else -1.0
    base, new = turn * first.scores[metric], turn * other.values[found]
    difference = float(np.mean(new - base))
    if difference < -margin:
        decision = "worse"
    elif difference == 0:
        decision = "equal"
    else:
        decision = "better" if difference > 0 else "not_worse"
    verdict = Verdict(
        decision=decision,
        metric=metric,
        difference=Interval(difference, difference, difference),
        p_value=None,
        alpha=alpha,
        margin=margin,
        num_examples=len(first),
        population_size=len(first),
        num_predicted=0,
        num_baseline_predicted=0,
        seconds=time.perf_counter() - start,
        device_seconds=0.0,
        reason="both were evaluated on every example",
        candidate=candidate,
    )
    return verdict, _generalization(base, new, alpha)


def _scores(record: EvaluationRecord, metric: str, which: str) -> ExampleScores:
    if record.examples is None or metric not in record.examples.scores:
        known = [] if record.examples is None else sorted(record.examples.scores)
        raise InvalidInputError(f"The {which} has no values per example of {metric!r}; it has them of {known}.")
    return record.examples


def _generalization(base: Any, new: Any, alpha: float) -> Generalization:
    interval = bootstrap(new, baseline=base, confidence=1 - alpha)
    binary = is_binary(np.abs(base)) and is_binary(np.abs(new))
    test = mcnemar(new != 0, base != 0) if binary else paired_permutation(new, base)
    return Generalization(
        low=float(interval.low),
        high=float(interval.high),
        confidence=1 - alpha,
        p_value=float(test.p_value),
        method=f"{interval.method}; {test.method}",
    )
