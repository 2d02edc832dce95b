"""Scoring a model: on everything, or on a sample, until a limit or a decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import metrics as metrics_room
from ..core.errors import InvalidInputError, one_of
from ..core.executor import Executor
from ..metrics import Metric, MetricSet, MetricValue
from ..stats.validation import check_confidence
from ..store import EvaluationStore, hash_data
from .evaluation_plan import EvaluationPlan, make_plan
from .model_identity import identify_model, warn_of_training_mode
from .recorded import save_record
from .records import EvaluationProgress, EvaluationRecord
from .scoring import KnownResults, Scoring
from .thresholds import thresholds_of
from .tiers import Tier, resolve_tier

_NAN_POLICIES = ("error", "wrong")


def evaluate(
    predict: Callable[[Any], Any],
    data: Any,
    metrics: Sequence[str | Metric[Any]] | Mapping[str, Metric[Any]] | MetricSet = ("accuracy",),
    tier: str | Tier = "full",
    *,
    store: EvaluationStore | str | PathLike[str] | None = None,
    model_key: Any = None,
    executor: Executor | None = None,
    thresholds: Mapping[str, float] | None = None,
    confidence: float = 0.95,
    groups: npt.NDArray[np.int64] | None = None,
    batch_size: int = 256,
    nan: str = "error",
    preprocessing: str = "",
    name: str = "",
    num_devices: int = 1,
    shard: tuple[int, int] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    on_batch: Callable[[int], None] | None = None,
    on_progress: Callable[[EvaluationProgress], None] | None = None,
) -> EvaluationRecord:
    """Score predictions against references.

    On everything (the default), each interval is for the population that the data set is a sample of. On a sample,
    drawn without replacement by content and seed, each interval is for the value on the whole data set.

    Args:
        predict: ``predict(batch_inputs) -> predictions``: labels [B], scores [B, C], logits [B, T, V], or a list of
            texts, as the metrics take them. Put a torch model in eval mode and under ``no_grad`` first. A batch for
            which memory runs out is halved, and so are those after it.
        data: A re-iterable of batches ``(inputs, references)``, or a map-style data set ``data[i] -> (input,
            reference)`` of single examples, with ``data.ids`` if it likes. A list or tuple holds batches if its
            references have a batch dimension.
        metrics: Names, metrics, or a set such as ``fb.metrics.preset("summarization")``.
        tier: ``"quick"`` (400 examples), ``"standard"`` (2,000), ``"full"``, or a `Tier` of your own. All but
            ``"full"`` need examples by index.
        store: An `EvaluationStore` or its path: results per example are committed batch by batch, found again however
            the evaluation ended, and shared by all who use the file.
        model_key: What the results belong to: the model's module or state dict, or a text. None: what ``predict``
            refers to, where that can be told. Changed weights are another model, whatever the text.
        executor: Where ``predict`` runs: one of `concurrent.futures`, say; None: here. Results count in draw order.
        thresholds: Metric to value: examples are drawn at random until it is certain, with error at most
            ``1 - confidence`` in all, that the value on the whole data set is above or below.
        confidence: Of the intervals.
        groups: int [N], equal for examples that belong together, for intervals that resample examples; thresholds
            draw them together.
        batch_size: For map-style data.
        nan: ``"error"``, or ``"wrong"``: class scores that are NaN count as a wrong class and are reported.
        preprocessing: Fingerprint of what is done to the examples; another one is another key in the store.
        name: Of the model, in the store's list.
        num_devices: Devices that ``predict`` holds, for ``device_seconds`` and the tier's limit.
        shard: ``(rank, world_size)``: score this rank's share only, into the store; then one call without ``shard``
            finds everything there.
        collate: Makes a batch of a list of inputs, or of references, for map-style data.
        on_batch: Called with the number of examples scored so far.
        on_progress: Called with an `EvaluationProgress` after each batch.

    Raises:
        InvalidInputError: no example, no metric, an unknown metric or tier, predictions a metric can't take, NaN, or
            an id that names two contents.
        EvaluationStoreError: the store can't be used.
    """
    start = time.perf_counter()
    check_confidence(confidence)
    _check(batch_size=batch_size, num_devices=num_devices, nan=nan)
    policy = resolve_tier(tier)
    chosen = resolve_metrics(policy.metrics or metrics)
    model_hash = identify_model(predict, model_key, wanted=store is not None)
    opened = store if isinstance(store, EvaluationStore) or store is None else EvaluationStore(store)
    known = None if opened is None else KnownResults.read(opened, str(model_hash), preprocessing, chosen)
    plan = make_plan(
        data,
        policy,
        threshold_tests=thresholds_of(thresholds or {}, chosen, alpha=1 - confidence, seed=policy.seed),
        groups=groups,
        batch_size=batch_size,
        shard=shard,
        collate=collate,
    )
    scoring = Scoring(chosen, known, nan, confidence)
    limit_s = None if policy.limit is None else policy.limit.in_seconds(num_devices).seconds
    stop_reason = plan.reason_at_end
    with closing(scoring.run(predict, plan.batches(), executor)) as steps:
        for batch, scores in steps:
            plan.tell(batch, scores)
            elapsed = time.perf_counter() - start
            if on_batch is not None:
                on_batch(scoring.num_examples)
            if on_progress is not None:
                on_progress(_progress(scoring, plan, elapsed))
            if plan.is_decided:
                stop_reason = "decided" if scoring.num_examples != plan.population_size else "complete"
                break
            next_batch_s = elapsed / scoring.num_examples * len(batch)
            if limit_s is not None and scoring.num_examples < len(plan) and elapsed + next_batch_s > limit_s:
                stop_reason = "limit"
                break
    if scoring.num_examples == 0:
        raise InvalidInputError("data holds no example to evaluate on.")
    if scoring.num_examples > scoring.num_cached:
        warn_of_training_mode(predict)
    population_size = scoring.num_examples if plan.population_size is None else plan.population_size
    data_hashes = plan.data_hashes if plan.data_hashes is not None else scoring.hashes
    if scoring.num_examples < population_size and plan.data_hashes is None:
        data_hashes = None  # a shard: the rest of the data was never read
    seconds = time.perf_counter() - start
    record = EvaluationRecord(
        values=_values(scoring, plan, population_size, groups),
        num_examples=scoring.num_examples,
        seconds=seconds,
        population_size=population_size,
        device_seconds=seconds * num_devices,
        tier=policy.name,
        decided=scoring.num_examples == population_size or plan.is_decided,
        decisions=plan.decisions,
        stop_reason=stop_reason,
        num_cached=scoring.num_cached,
        num_nan=scoring.num_nan,
        num_duplicates=plan.num_duplicates,
        data_hash=None if data_hashes is None else hash_data(data_hashes),
        model_hash=model_hash,
        preprocessing=preprocessing,
        examples=scoring.examples(),
    )
    if opened is not None and data_hashes is not None:
        record = replace(record, store_id=save_record(opened, record, data_hashes, name))
    return record


def _values(
    scoring: Scoring, plan: EvaluationPlan, population_size: int, groups: npt.NDArray[np.int64] | None
) -> dict[str, MetricValue]:
    if scoring.num_examples == population_size:
        return scoring.values(groups, None)
    values = scoring.values(groups, population_size)
    return values | plan.threshold_values(values)


def _progress(scoring: Scoring, plan: EvaluationPlan, seconds: float) -> EvaluationProgress:
    metric, low, value, high = scoring.running(plan.population_size) or (None, None, None, None)
    return EvaluationProgress(
        num_examples=scoring.num_examples,
        planned=len(plan) if plan.population_size is not None else None,
        metric=metric,
        value=value,
        low=low,
        high=high,
        seconds=seconds,
    )


def _check(*, batch_size: int, num_devices: int, nan: str) -> None:
    for name, value in (("batch_size", batch_size), ("num_devices", num_devices)):
        if value < 1:
            raise InvalidInputError(f"{name} must be at least 1, got {value}.")
    if nan not in _NAN_POLICIES:
        raise InvalidInputError(f"nan must be one of {one_of(_NAN_POLICIES)}, got {nan!r}.")


def resolve_metrics(
    metrics: Iterable[str | Metric[Any]] | Mapping[str, Metric[Any]] | MetricSet,
) -> dict[str, Metric[Any]]:
    """Return metrics by the name they have in a record."""
    if isinstance(metrics, MetricSet):
        return metrics.metrics
    if isinstance(metrics, str):
        raise InvalidInputError(f"metrics must be a list of names, got the text {metrics!r}; write [{metrics!r}].")
    if isinstance(metrics, Mapping):
        chosen = dict(metrics)
    else:
        chosen = {}
        for entry in metrics:
            metric = metrics_room.get(entry) if isinstance(entry, str) else entry
            chosen[metric.name or type(metric).__name__] = metric
    if not chosen:
        raise InvalidInputError("metrics must name at least one metric.")
    return chosen
