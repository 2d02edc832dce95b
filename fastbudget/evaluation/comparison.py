"""Is the candidate better or worse than the baseline? Evaluated until that is certain, and no further."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import metrics as metrics_room
from ..core.budget import Budget
from ..core.errors import InvalidInputError
from ..core.executor import Executor
from ..core.interval import Interval
from ..metrics import Metric, MetricValue
from ..stats import SequentialPairedTest
from ..store import EvaluationStore, hash_data
from .example_data import Batch, ExampleSet, Indices
from .flip_prediction import FlipRates, flips_from_margins
from .model_identity import identify_model
from .paired_baseline import BaselineRuns, PairedBaseline, pair_baseline
from .records import EvaluationProgress, EvaluationRecord
from .sampling import canonical_order
from .scoring import KnownResults, Scoring
from .verdict import Verdict

FloatArray = npt.NDArray[np.float64]


def compare(
    baseline: EvaluationRecord,
    predict: Callable[[Any], Any],
    data: Any,
    metric: str | Metric[Any] = "accuracy",
    margin: float = 0.0,
    alpha: float = 0.05,
    *,
    baseline_predict: Callable[[Any], Any] | None = None,
    flip_rates: FlipRates | None = None,
    weighted: bool = True,
    value_range: tuple[float, float] | None = None,
    store: EvaluationStore | str | PathLike[str] | None = None,
    model_key: Any = None,
    executor: Executor | None = None,
    limit: Budget | None = None,
    seed: int = 0,
    batch_size: int = 64,
    nan: str = "error",
    preprocessing: str = "",
    num_devices: int = 1,
    collate: Callable[[list[Any]], Any] | None = None,
    on_progress: Callable[[EvaluationProgress], None] | None = None,
) -> Verdict:
    """Compare a candidate with a baseline, example by example, until the answer is certain.

    A sequential paired test over examples drawn without replacement: it may be looked at after every batch, its error
    is at most ``alpha`` wherever it stops, and after the last example its answer is the full evaluation's. Examples on
    which the baseline was unsure are drawn more often, which is corrected for.

    Args:
        baseline: A record of the same data, from `evaluate`, `read_record` or another verdict's ``candidate``. Where it
            covers a part of the data, that part is compared on, unless ``baseline_predict`` is given.
        predict: The candidate; see `evaluate`.
        data: Map-style, or a list of batches; see `evaluate`.
        metric: A mean of values per example, such as accuracy, which the baseline was evaluated with.
        margin: 0: is it better or worse? Above 0, in the metric's unit: is it not worse by more than this?
        alpha: Error probability, between 0 and 1.
        baseline_predict: The baseline, to be run on examples that are drawn and that it wasn't evaluated on.
        flip_rates: How often examples flip by margin, from earlier records; saves examples.
        weighted: Draw examples by how likely they are to flip, where the baseline has margins.
        value_range: Bounds of a value per example, for metrics that have none of their own. A value outside is an
            error.
        store: Where the candidate's results are found and kept.
        model_key: What the candidate's results belong to; see `evaluate`. A candidate with the baseline's content isn't
            run: it is equal.
        executor: Where ``predict`` runs; see `evaluate`.
        limit: What may be spent before it stops undecided.
        seed: Of the draw.
        batch_size: Examples per look.
        nan: ``"error"``, or ``"wrong"``; see `evaluate`.
        preprocessing: Fingerprint; see `evaluate`.
        num_devices: Devices that ``predict`` holds.
        collate: See `evaluate`.
        on_progress: Called after each batch; ``value`` is the difference so far.

    Raises:
        InvalidInputError: alpha or margin out of range, a baseline of another data set or metric, no results per
            example, an unbounded metric, NaN, or empty data.
    """
    start = time.perf_counter()
    _check_numbers(alpha, margin, batch_size, num_devices)
    chosen = metrics_room.get(metric) if isinstance(metric, str) else metric
    name = chosen.name or type(chosen).__name__
    bounds = _bounds(chosen, name, value_range)
    examples = ExampleSet(data, collate)
    population = examples.distinct()
    if len(population) == 0:
        raise InvalidInputError("data holds no example to compare on.")
    opened = store if isinstance(store, EvaluationStore) or store is None else EvaluationStore(store)
    hashes = examples.hashes()[population]
    order = canonical_order(hashes)
    population, hashes = population[order], hashes[order]
    paired = pair_baseline(baseline, name, chosen, hashes, opened)
    if baseline_predict is None and not paired.is_known.all():
        population, hashes = population[paired.is_known], hashes[paired.is_known]
        paired = paired.only_known()
    model_hash = identify_model(predict, model_key, wanted=opened is not None)
    question = _Question(
        metric=name, margin=margin, alpha=alpha, num_devices=num_devices, start=start, population_size=len(population)
    )
    same_model = model_hash is not None and model_hash == baseline.model_hash
    if same_model and preprocessing == baseline.preprocessing and paired.is_known.all():
        return question.equal_without_running()
    known = opened and KnownResults.read(opened, str(model_hash), preprocessing, {name: chosen})
    run = _Comparison(
        question,
        examples,
        population,
        paired,
        chosen,
        bounds,
        flips=_flips(paired, flip_rates) if weighted else None,
        seed=seed,
        batch_size=batch_size,
    )
    scoring = Scoring({name: chosen}, known or None, nan, 1 - alpha)
    gaps = None
    if baseline_predict is not None:
        key = baseline.model_hash
        kept = opened and key and KnownResults.read(opened, key, baseline.preprocessing, {name: chosen})
        gaps = BaselineRuns(baseline_predict, name, chosen, kept or None, nan, executor)
    limit_s = None if limit is None else limit.in_seconds(num_devices).seconds
    reason = "every example was evaluated"
    with closing(scoring.run(predict, run.batches(), executor)) as steps:
        for batch, scores in steps:
            run.tell(batch, scores[name], gaps)
            elapsed = time.perf_counter() - start
            if on_progress is not None:
                on_progress(run.progress(scoring, elapsed))
            if run.decision != "undecided":
                break
            if limit_s is not None and elapsed * (1 + len(batch) / scoring.num_examples) > limit_s:
                if scoring.num_examples < len(population):
                    reason = "the limit was reached"
                break
    candidate_hash, data_hash = model_hash, baseline.data_hash or hash_data(hashes)
    return run.verdict(scoring, gaps, reason, candidate_hash, data_hash, preprocessing)
