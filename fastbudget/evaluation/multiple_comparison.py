"""Several comparisons at once, on one shared sample and with one error probability for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import metrics as metrics_room
from ..core.budget import Budget
from ..core.errors import InvalidInputError
from ..core.executor import Executor
from ..core.interval import Interval
from ..metrics import Metric
from ..stats import SequentialPairedTest, holm
from ..store import EvaluationStore
from .comparison import check_numbers, score_bounds
from .comparison_table import ComparisonRow, ComparisonTable
from .example_data import ExampleSet
from .model_identity import identify_model, warn_of_training_mode
from .paired_baseline import pair_baseline
from .records import EvaluationRecord
from .sampling import canonical_order
from .scoring import KnownResults, Scoring
from .sequential_run import Question

FloatArray = npt.NDArray[np.float64]

_ONE = "candidate"


@dataclass(kw_only=True)
class _Pair:
    """A candidate, a baseline and the test between them; no test for identical models."""

    candidate: str
    baseline: str
    test: SequentialPairedTest | None
    # The smallest so far: once a hypothesis could be rejected, it stays so (the wealth may have fallen since).
    p_better: float = 1.0
    p_worse: float = 1.0
    decision: str = "undecided"

    def look(self) -> None:
        """Read the p-values."""
        if self.test is not None:
            self.p_better = min(self.p_better, self.test.p_better)
            self.p_worse = min(self.p_worse, self.test.p_worse)


@dataclass(kw_only=True)
class _Candidate:
    """A model to be run, its results so far, and its rows."""

    predict: Callable[[Any], Any]
    scoring: Scoring
    model_hash: str | None
    pairs: list[_Pair] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether a row still needs its results."""
        return any(pair.decision == "undecided" for pair in self.pairs)


def compare_many(
    baselines: EvaluationRecord | Mapping[str, EvaluationRecord],
    predict: Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]],
    data: Any,
    metric: str | Metric[Any] = "accuracy",
    margin: float = 0.0,
    alpha: float = 0.05,
    *,
    value_range: tuple[float, float] | None = None,
    store: EvaluationStore | str | PathLike[str] | None = None,
    model_keys: Any = None,
    executor: Executor | None = None,
    limit: Budget | None = None,
    seed: int = 0,
    batch_size: int = 64,
    nan: str = "error",
    preprocessing: str = "",
    num_devices: int = 1,
    collate: Callable[[list[Any]], Any] | None = None,
) -> ComparisonTable:
    """Compare one candidate with several baselines, or several candidates with one (an ablation table), or all pairs.

    All pairs share one random draw, so that a candidate is run once per example, whatever the number of baselines; it
    is run no more once all its rows are decided.

    The probability of any wrong decision in the table is at most ``alpha``, wherever it stops. Each pair has two
    one-sided hypotheses, "not better" and "not worse", each with a p-value that is valid at any time: a true one's ever
    falls to a with probability a at most (Ville). At every look Holm's method is applied to the smallest p-values so
    far of all 2k hypotheses. It first rejects a true one only when the p-value of one of the true ones, I of them, is
    at most alpha / I; that any of the I ever is has probability alpha at most, by the union bound. So it holds at all
    looks together, whatever the dependence of pairs that share examples, and for the direction too. Source: S. Holm,
    "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979), 65-70.

    Args:
        baselines: Records by name, or one, of the same data. Where they cover parts, what all know is compared on.
        predict: Candidates by name, or one; see `fb.evaluate`.
        data: Map-style, or a list of batches.
        metric: A mean of values per example that the baselines were evaluated with.
        margin: 0: better or worse? Above 0: not worse by more than this?
        alpha: Between 0 and 1.
        value_range: Bounds of a value per example, for metrics that have none of their own.
        store: Where candidates' results are found and kept.
        model_keys: By candidate's name, or one; see ``model_key`` of `fb.evaluate`. A candidate with a baseline's
            content is equal to it without a test.
        executor: Where ``predict`` runs.
        limit: What may be spent before it stops with rows undecided.
        seed: Of the draw.
        batch_size: Examples per look.
        nan: ``"error"``, or ``"wrong"``.
        preprocessing: Fingerprint.
        num_devices: Devices that ``predict`` holds.
        collate: See `fb.evaluate`.

    Raises:
        InvalidInputError: nothing to compare, or what `fb.compare` raises.
    """
    start = time.perf_counter()
    records = dict(baselines) if isinstance(baselines, Mapping) else {"baseline": baselines}
    predicts = dict(predict) if isinstance(predict, Mapping) else {_ONE: predict}
    keys = dict(model_keys) if isinstance(predict, Mapping) and model_keys is not None else {_ONE: model_keys}
    if not records or not predicts:
        raise InvalidInputError(f"There must be a baseline and a candidate, got {len(records)} and {len(predicts)}.")
    if not 0 < alpha < 1:
        raise InvalidInputError(f"alpha must be between 0 and 1, got {alpha!r}.")
    check_numbers(margin, batch_size, num_devices)
    chosen = metrics_room.get(metric) if isinstance(metric, str) else metric
    name = chosen.name or type(chosen).__name__
    question = Question(
        metric=name,
        higher_is_better=chosen.higher_is_better,
        bounds=score_bounds(chosen, name, value_range),
        margin=margin,
        alpha=alpha,
        num_devices=num_devices,
    )
    opened = store if isinstance(store, EvaluationStore) or store is None else EvaluationStore(store)
    examples = ExampleSet(data, collate)
    population = examples.distinct()
    if len(population) == 0:
        raise InvalidInputError("data holds no example to compare on.")
    hashes = examples.hashes()[population]
    order = canonical_order(hashes)
    population, hashes = population[order], hashes[order]
    paired = {who: pair_baseline(record, name, chosen, hashes, opened) for who, record in records.items()}
    known_to_all = np.logical_and.reduce([baseline.is_known for baseline in paired.values()])
    if not known_to_all.any():
        raise InvalidInputError("The baselines have no example in common; evaluate them with the same tier and seed.")
    population = population[known_to_all]
    scores = {who: question.turned(baseline.scores[known_to_all]) for who, baseline in paired.items()}

    candidates: dict[str, _Candidate] = {}
    for who, function in predicts.items():
        model_hash = identify_model(function, keys.get(who), wanted=opened is not None)
        known = None if opened is None else KnownResults.read(opened, str(model_hash), preprocessing, {name: chosen})
        candidates[who] = _Candidate(
            predict=function, scoring=Scoring({name: chosen}, known, nan, 1 - alpha), model_hash=model_hash
        )
    identical = {
        (who, other)
        for who, candidate in candidates.items()
        for other, record in records.items()
        if candidate.model_hash is not None
        and (candidate.model_hash, preprocessing) == (record.model_hash, record.preprocessing)
    }
    num_tests = len(candidates) * len(records) - len(identical)
    pairs = []
    for who, candidate in candidates.items():
        for other, baseline in scores.items():
            same = (who, other) in identical
            test = None if same else _test(question, baseline, alpha / num_tests, seed)
            candidate.pairs.append(
                _Pair(candidate=who, baseline=other, test=test, decision="equal" if same else "undecided")
            )
        pairs += candidate.pairs
    drawn, reason = _run(examples, population, pairs, candidates, question, batch_size, executor, limit)
    for function in predicts.values():
        warn_of_training_mode(function)
    seconds = time.perf_counter() - start
    return ComparisonTable(
        rows=_rows(pairs, alpha, margin),
        metric=name,
        alpha=alpha,
        margin=margin,
        population_size=len(population),
        num_examples=drawn,
        num_predicted=sum(c.scoring.num_examples - c.scoring.num_cached for c in candidates.values()),
        seconds=seconds,
        reason=reason,
    )


def _test(question: Question, baseline: FloatArray, alpha: float, seed: int) -> SequentialPairedTest:
    """Return a pair's test. Drawn uniformly: all pairs must draw the same. Its interval has its part of alpha."""
    low, high = question.bounds if question.higher_is_better else (-question.bounds[1], -question.bounds[0])
    return SequentialPairedTest(
        len(baseline),
        baseline=baseline,
        margin_low=-question.margin,
        margin_high=-question.margin,
        alpha=alpha,
        value_range=(low - high, high - low),
        score_range=(low, high),
        seed=seed,
    )


def _run(
    examples: ExampleSet,
    population: npt.NDArray[np.int64],
    pairs: list[_Pair],
    candidates: Mapping[str, _Candidate],
    question: Question,
    batch_size: int,
    executor: Executor | None,
    limit: Budget | None,
) -> tuple[int, str]:
    """Draw until every row is decided; returns how many examples were drawn, and why it ended."""
    limit_s = None if limit is None else limit.in_seconds(question.num_devices).seconds
    drawn = 0
    while any(candidate.is_open for candidate in candidates.values()):
        elapsed = time.perf_counter() - question.start
        if limit_s is not None and drawn and elapsed * (1 + batch_size / drawn) > limit_s:
            return drawn, "the limit was reached"
        places: npt.NDArray[np.int64] | None = None
        for candidate in candidates.values():
            if not candidate.is_open:
                continue
            for pair in candidate.pairs:
                if pair.test is None:
                    continue
                mine = pair.test.next_batch(batch_size)
                assert places is None or np.array_equal(places, mine)
                places = mine
            assert places is not None
            batch = examples.take(population[places])
            for _, values in candidate.scoring.run(candidate.predict, [batch], executor):
                question.check(batch, values[question.metric])
                turned = question.turned(values[question.metric])
                for pair in candidate.pairs:
                    if pair.test is not None:
                        pair.test.update(places, turned)
                        pair.look()
        assert places is not None
        drawn += len(places)
        _decide(pairs, question.alpha, complete=drawn == len(population))
    if drawn == len(population):
        return drawn, "every example was evaluated"
    return drawn, f"the answers are certain, with error at most {question.alpha:g} in all"


def _adjusted(pairs: list[_Pair]) -> list[tuple[float, float]]:
    """Return Holm's adjusted p-values of both hypotheses of each tested pair."""
    adjusted = holm([p for pair in pairs for p in (pair.p_better, pair.p_worse)])
    return list(zip(adjusted[::2].tolist(), adjusted[1::2].tolist(), strict=True))


def _decide(pairs: list[_Pair], alpha: float, *, complete: bool) -> None:
    tested = [pair for pair in pairs if pair.test is not None]
    for pair, (better, worse) in zip(tested, _adjusted(tested), strict=True):
        if pair.decision != "undecided":
            continue
        assert pair.test is not None
        if complete:
            pair.decision = pair.test.decision
        elif min(better, worse) <= alpha:
            pair.decision = "better" if better < worse else "worse"


def _rows(pairs: list[_Pair], alpha: float, margin: float) -> tuple[ComparisonRow, ...]:
    tested = [pair for pair in pairs if pair.test is not None]
    p_values = {id(pair): min(both) for pair, both in zip(tested, _adjusted(tested), strict=True)} if tested else {}
    rows = []
    for pair in pairs:
        difference = Interval(0.0, 0.0, 0.0)
        if pair.test is not None:
            low, high = pair.test.interval()
            estimate = pair.test.estimate
            difference = Interval(low, min(max(low if estimate is None else estimate, low), high), high)
        decision = "not_worse" if margin > 0 and pair.decision in ("better", "equal") else pair.decision
        rows.append(
            ComparisonRow(
                candidate=pair.candidate,
                baseline=pair.baseline,
                decision=decision,
                difference=difference,
                p_value=p_values.get(id(pair)),
                num_examples=0 if pair.test is None else pair.test.num_evaluated,
            )
        )
    return tuple(rows)
