"""Two finished evaluations compared: nothing is left to run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from ..core.errors import InvalidInputError, one_of
from ..core.interval import Interval
from ..metrics import MetricValue
from ..metrics.paired_sums import summed_pair
from ..stats import approximate_randomization, bootstrap, bootstrap_sums, mcnemar, paired_permutation
from ..stats.validation import check_alpha
from ..store.example_values import unique_examples
from .comparison import check_margin
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
    is for: paired where the metric is a mean of values per example, or a function of sums over examples (macro-F1,
    BLEU: approximate); of other metrics, and of records from a store, from both records' intervals (approximate).

    Args:
        baseline: Every example scored.
        candidate: Likewise.
        metric: That both were evaluated with.
        margin: See `compare`.
        alpha: Of the generalization's interval, 1 - confidence.
        higher_is_better: Of the metric.

    Raises:
        InvalidInputError: other data, other metrics, a record of a part, or alpha or margin out of range.
    """
    start = time.perf_counter()
    check_margin(margin)
    check_alpha(alpha)
    first, second = _scores(baseline, metric, "baseline"), _scores(candidate, metric, "candidate")
    if first.signatures[metric] != second.signatures[metric]:
        raise InvalidInputError(
            f"The records were scored differently: {first.signatures[metric]!r} and {second.signatures[metric]!r}."
        )
    other = unique_examples(second.hashes, np.arange(len(second)), what="candidate", tolerance=np.inf)
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
    if _is_mean(baseline, metric) and _is_mean(candidate, metric):
        base, new = turn * first.scores[metric], turn * second.scores[metric][other.values[found]]
        difference = float(np.mean(new - base))
        beyond = _generalization(base, new, alpha)
    else:
        difference = turn * (candidate[metric].value - baseline[metric].value)
        beyond = _of_sums(first, second, other.values[found], metric, turn, alpha) or _of_whole_sets(
            baseline[metric], candidate[metric], turn, alpha
        )
    if math.isnan(difference):
        raise InvalidInputError(f"{metric!r} has no value in one of the records (NaN): it can't be compared.")
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
    return verdict, beyond


def _scores(record: EvaluationRecord, metric: str, which: str) -> ExampleScores:
    if metric not in record.values:
        raise InvalidInputError(f"The {which} wasn't evaluated with {metric!r}, only with {one_of(record.values)}.")
    if record.examples is None:
        raise InvalidInputError(f"The {which} doesn't say which examples it was scored on; evaluate it again.")
    return record.examples


def _is_mean(record: EvaluationRecord, metric: str) -> bool:
    """Whether the values per example are what the metric averages: those of BLEU are its value on single sentences."""
    scores = record.examples.scores.get(metric) if record.examples is not None else None
    return scores is not None and math.isclose(scores.mean(), record[metric].value, rel_tol=1e-9, abs_tol=1e-12)


def _of_sums(
    first: ExampleScores, second: ExampleScores, place: Any, metric: str, turn: float, alpha: float
) -> Generalization | None:
    """Resample both models' contributions together; None where a record from a store doesn't hold them.

    ``place`` says where the second record has the first one's examples.
    """
    theirs, mine = first.contributions.get(metric), second.contributions.get(metric)
    if theirs is None or mine is None:
        return None
    pair = summed_pair(replace(mine, rows=mine.rows[place]), theirs)
    if pair is None:
        return None
    new, base, value_of = pair
    interval = bootstrap_sums(new, value_of, baseline=base, confidence=1 - alpha)
    test = approximate_randomization(new, base, value_of, resamples=2000)
    low, high = sorted((turn * interval.low, turn * interval.high))
    return Generalization(
        low=low,
        high=high,
        confidence=1 - alpha,
        p_value=float(test.p_value),
        method=f"{interval.method}, paired (approximate); {test.method}",
    )


def _of_whole_sets(base: MetricValue, new: MetricValue, turn: float, alpha: float) -> Generalization:
    """Combine two intervals into one of the difference, as if the records were of different examples.

    That is too wide, not too narrow, for models that err on the same examples. Source: G. Y. Zou and A. Donner,
    "Construction of confidence limits about effect measures: a general approach", Statistics in Medicine 27 (2008).
    """
    normal = NormalDist()
    wanted = normal.inv_cdf(1 - alpha / 2)
    below, above = (
        math.hypot(_side(new, -turn, wanted), _side(base, turn, wanted)),
        math.hypot(_side(new, turn, wanted), _side(base, -turn, wanted)),
    )
    difference = turn * (new.value - base.value)
    toward_zero = below if difference > 0 else above
    z = math.inf if toward_zero == 0 else wanted * abs(difference) / toward_zero
    return Generalization(
        low=difference - below,
        high=difference + above,
        confidence=1 - alpha,
        p_value=1.0 if difference == 0 else 2 * (1 - normal.cdf(z)),
        method=f"{base.method} of both, unpaired (approximate); normal (approximate)",
    )


def _side(value: MetricValue, direction: float, wanted: float) -> float:
    """Return how far an interval reaches to one side, at the confidence wanted instead of its own."""
    reach = value.high - value.value if direction > 0 else value.value - value.low
    return reach * wanted / NormalDist().inv_cdf(0.5 + value.confidence / 2)


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
