"""Is the candidate better or worse than the baseline? Evaluated until that is certain, and no further."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import metrics as metrics_room
from ..core.budget import Budget
from ..core.errors import InvalidInputError
from ..core.executor import Executor
from ..metrics import Metric
from ..stats.validation import check_alpha
from ..store import EvaluationStore, hash_data
from .example_data import ExampleSet
from .flip_prediction import FlipRates, flips_from_margins
from .model_identity import identify_model, warn_of_training_mode
from .paired_baseline import BaselineRuns, PairedBaseline, pair_baseline
from .records import EvaluationProgress, EvaluationRecord
from .sampling import canonical_order
from .scoring import KnownResults, Scoring, groups_of
from .sequential_run import Question, SequentialRun
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
    groups: npt.ArrayLike | None = None,
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
        groups: int [N] by place in the data, equal for examples that depend on each other (questions on one passage):
            they are drawn together.
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
    chosen = metrics_room.get(metric) if isinstance(metric, str) else metric
    name = chosen.name or type(chosen).__name__
    check_numbers(margin, batch_size, num_devices)
    question = Question(
        metric=name,
        higher_is_better=chosen.higher_is_better,
        bounds=score_bounds(chosen, name, value_range),
        margin=margin,
        alpha=check_alpha(alpha),
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
    paired = pair_baseline(baseline, name, chosen, hashes, opened)
    model_hash = identify_model(predict, model_key, wanted=opened is not None)
    same_model = model_hash is not None and (model_hash, preprocessing) == (
        baseline.model_hash,
        baseline.preprocessing,
    )
    gaps = None
    if not paired.is_known.all():
        if baseline_predict is None or same_model:
            population, paired = population[paired.is_known], paired.only_known()
        else:
            gaps = _baseline_runs(baseline_predict, baseline, name, chosen, nan, executor, opened)
    if same_model:
        return question.equal_without_running(len(population))
    run = SequentialRun(
        question,
        examples,
        population,
        paired,
        # One draw for all where the baseline has gaps, so that what is known of it is what is drawn first.
        flips=_flips(paired, flip_rates) if weighted and gaps is None else None,
        groups=None if groups is None else groups_of(groups, population),
        gaps=gaps,
        seed=seed,
        batch_size=batch_size,
    )
    known = None if opened is None else KnownResults.read(opened, str(model_hash), preprocessing, {name: chosen})
    scoring = Scoring({name: chosen}, known, nan, 1 - alpha)
    limit_s = None if limit is None else limit.in_seconds(num_devices).seconds
    limit_reached = False
    with closing(scoring.run(predict, run.batches(), executor)) as steps:
        for batch, scores in steps:
            run.tell(batch, scores[name])
            if on_progress is not None:
                on_progress(run.progress(scoring))
            if run.is_decided:
                break
            next_end_s = (time.perf_counter() - question.start) * (1 + len(batch) / scoring.num_examples)
            if limit_s is not None and next_end_s > limit_s:
                limit_reached = True
                break
    warn_of_training_mode(predict)
    candidate = {
        "data_hash": baseline.data_hash or hash_data(hashes),
        "model_hash": model_hash,
        "preprocessing": preprocessing,
    }
    return run.verdict(scoring, candidate, limit_reached=limit_reached)


def check_numbers(margin: float, batch_size: int, num_devices: int) -> None:
    """Raise InvalidInputError for numbers out of range."""
    check_margin(margin)
    for name, value in (("batch_size", batch_size), ("num_devices", num_devices)):
        if value < 1:
            raise InvalidInputError(f"{name} must be at least 1, got {value}.")


def check_margin(margin: float) -> None:
    """Raise InvalidInputError for a margin that is no bound."""
    if not (math.isfinite(margin) and margin >= 0):
        raise InvalidInputError(f"margin must be a finite number of at least 0, got {margin!r}.")


def score_bounds(metric: Metric[Any], name: str, value_range: tuple[float, float] | None) -> tuple[float, float]:
    """Return the bounds of one example's score; raises InvalidInputError where there are none."""
    if not metric.is_mean:
        raise InvalidInputError(
            f"A sequential comparison needs a mean of values per example, such as accuracy; {name!r} isn't one. "
            "Evaluate both in full, and compare the records with fb.evaluation.compare_records."
        )
    bounds = value_range or metric.example_range
    if bounds is None:
        raise InvalidInputError(
            f"{name!r} has no bounds: give value_range=(low, high) that no example's value can leave."
        )
    if not (math.isfinite(bounds[0]) and math.isfinite(bounds[1]) and bounds[0] < bounds[1]):
        raise InvalidInputError(f"value_range must be two finite numbers low < high, got {bounds}.")
    return float(bounds[0]), float(bounds[1])


def _flips(paired: PairedBaseline, rates: FlipRates | None) -> FloatArray | None:
    if paired.margins is None:
        return None
    if rates is not None:
        return rates.predict(np.nan_to_num(paired.scores), paired.margins)
    return flips_from_margins(paired.margins)


def _baseline_runs(
    predict: Callable[[Any], Any],
    baseline: EvaluationRecord,
    name: str,
    metric: Metric[Any],
    nan: str,
    executor: Executor | None,
    store: EvaluationStore | None,
) -> BaselineRuns:
    known = None
    if store is not None and baseline.model_hash is not None:
        known = KnownResults.read(store, baseline.model_hash, baseline.preprocessing, {name: metric})
    return BaselineRuns(predict, name, metric, known, nan, executor)
