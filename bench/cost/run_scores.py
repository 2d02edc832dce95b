"""How far predicted times are from published ones, beside what naive arithmetic gives on the same rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from published_runs import PublishedRun
from row_cells import NotModeled
from weighted import publisher_weights, weighted_quantile, weighted_share

import fastbudget as fb
from fastbudget.core.errors import InvalidInputError
from fastbudget.core.interval import Interval

Predict = Callable[[PublishedRun], "Prediction"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A predicted time in the unit of what was measured.

    Attributes:
        value: seconds of a step, or GPU-hours of a whole run; 80%.
        extrapolating: what lies outside the calibrated range.
    """

    value: Interval
    extrapolating: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScoredRun:
    """A published figure and its prediction."""

    run: PublishedRun
    measured: float
    prediction: Prediction

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.prediction.value.mid / self.measured - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.prediction.value.low <= self.measured <= self.prediction.value.high

    @property
    def width(self) -> float:
        """The interval's width over its middle."""
        return (self.prediction.value.high - self.prediction.value.low) / self.prediction.value.mid


def predict_publicly(run: PublishedRun) -> Prediction:
    """Return what ``fb.estimate_transformer`` says.

    Raises:
        NotModeled: it refuses the request.
    """
    try:
        estimate = fb.estimate_transformer(run.shape, **run.arguments())
    except InvalidInputError as error:
        raise NotModeled("the estimator refuses the layout") from error
    value = estimate.gpu_hours if run.measure.whole_run else estimate.step_time_s
    assert value is not None, "tokens were given"
    return Prediction(value=value, extrapolating=tuple(estimate.extrapolating))


def score_runs(
    runs: Sequence[PublishedRun], skipped: Counter[str], predict: Predict = predict_publicly
) -> list[ScoredRun]:
    """Return a score for every run that can be predicted; the others are counted in ``skipped``."""
    scored = []
    for run in runs:
        try:
            prediction = predict(run)
        except NotModeled as reason:
            skipped[str(reason)] += 1
            continue
        measured = run.measure.gpu_hours or run.measure.step_time_s
        scored.append(ScoredRun(run=run, measured=measured, prediction=prediction))
    return scored


def summary(scored: Sequence[ScoredRun]) -> dict[str, Any]:
    """Return the scoreboard of time: the headline lets every publisher weigh the same."""
    if not scored:
        return {"count": 0}
    publishers = [one.run.publisher for one in scored]
    weights = publisher_weights(publishers)
    by_row = [1.0] * len(scored)
    by_publisher = _grouped(scored, lambda one: one.run.publisher)
    return {
        "count": len(scored),
        "publishers": len(set(publishers)),
        **_statistics(scored, weights),
        "median_of_publisher_medians": median(one["median_abs_error"] for one in by_publisher.values()),
        **{f"{name}_by_row": value for name, value in _statistics(scored, by_row).items()},
        "by_publisher": by_publisher,
        "by_gpu": _grouped(scored, lambda one: one.run.device.key),
        "by_measure": _grouped(scored, lambda one: one.run.measure.kind),
        "extrapolating": _extrapolating(scored),
        "nothing_assumed": _errors_of([one for one in scored if not one.run.assumed]),
        "baselines": {
            "6nd_mfu_0.4": _baseline(scored, [_error_at(one, 0.4) for one in scored]),
            "gpu_median_mfu_source_held_out": _baseline(scored, _held_out_errors(scored)),
        },
    }


def _statistics(scored: Sequence[ScoredRun], weights: Sequence[float]) -> dict[str, float]:
    sizes = [abs(one.error) for one in scored]
    return {
        **_sizes(sizes, weights),
        "coverage": weighted_share([one.covered for one in scored], weights),
        "median_width": weighted_quantile([one.width for one in scored], weights, 0.5),
    }


def _sizes(sizes: Sequence[float], weights: Sequence[float]) -> dict[str, float]:
    return {
        "median_abs_error": weighted_quantile(sizes, weights, 0.5),
        "p90_abs_error": weighted_quantile(sizes, weights, 0.9),
        "within_10pct": weighted_share([size <= 0.1 for size in sizes], weights),
    }


def _errors_of(scored: Sequence[ScoredRun]) -> dict[str, Any]:
    if not scored:
        return {"count": 0}
    weights = [1.0] * len(scored)
    return {
        "count": len(scored),
        **_statistics(scored, weights),
        "median_error": median(one.error for one in scored),
    }


def _grouped(scored: Sequence[ScoredRun], name: Callable[[ScoredRun], str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[ScoredRun]] = defaultdict(list)
    for one in scored:
        groups[name(one)].append(one)
    return {key: _errors_of(group) for key, group in sorted(groups.items())}


def _extrapolating(scored: Sequence[ScoredRun]) -> dict[str, Any]:
    outside = [one for one in scored if one.prediction.extrapolating]
    reasons = Counter(reason.split(":")[0] for one in outside for reason in one.prediction.extrapolating)
    return {**_errors_of(outside), "reasons": dict(reasons.most_common())}


def naive_flops(run: PublishedRun) -> float:
    """Return 6 FLOPs per active parameter and token of what was measured: a step, or a whole run."""
    tokens = run.measure.tokens if run.measure.tokens is not None else run.tokens_per_step
    return 6.0 * run.shape.num_active_params * tokens


def _published_mfu(one: ScoredRun) -> float:
    run = one.run
    device_seconds = one.measured * (3600.0 if run.measure.whole_run else run.layout.num_devices)
    return naive_flops(run) / (device_seconds * _sixteen_bit_peak(run))


def _sixteen_bit_peak(run: PublishedRun) -> float:
    device = run.device
    # A card whose peak nobody printed is taken for its chip's other form: the H100's.
    return device.bf16_flops_per_s or device.fp16_flops_per_s or 989e12


def _error_at(one: ScoredRun, mfu: float) -> float:
    """Return the error of the time that a constant MFU gives."""
    return _published_mfu(one) / mfu - 1


def _held_out_errors(scored: Sequence[ScoredRun]) -> list[float]:
    """Return errors at the median MFU that others published for the same accelerator and precision.

    Where nobody else did: for the accelerator, else for any.
    """
    errors = []
    cache: dict[tuple[str, str, str], float] = {}
    for one in scored:
        run = one.run
        key = (run.publisher, run.device.key, run.layout.precision)
        if key not in cache:
            others = [other for other in scored if other.run.publisher != run.publisher] or list(scored)
            device = [other for other in others if other.run.device.key == run.device.key]
            same = [other for other in device if other.run.layout.precision == run.layout.precision]
            cache[key] = median(_published_mfu(other) for other in same or device or others)
        errors.append(_error_at(one, cache[key]))
    return errors


def _baseline(scored: Sequence[ScoredRun], errors: Sequence[float]) -> dict[str, float]:
    sizes = [abs(error) for error in errors]
    weights = publisher_weights([one.run.publisher for one in scored])
    by_row = {f"{name}_by_row": value for name, value in _sizes(sizes, [1.0] * len(sizes)).items()}
    return {**_sizes(sizes, weights), **by_row}


def rows_of(scored: Sequence[ScoredRun]) -> list[dict[str, Any]]:
    """Return one record per row: what was measured, predicted and assumed."""
    return [
        {
            "id": one.run.run_id,
            "publisher": one.run.publisher,
            "model": one.run.model,
            "gpu": one.run.device.key,
            "num_devices": one.run.layout.num_devices,
            "measure": one.run.measure.kind,
            "unit": "GPU-hours" if one.run.measure.whole_run else "s/step",
            "published": one.measured,
            "predicted": one.prediction.value.to_json(),
            "error": one.error,
            "covered": one.covered,
            "extrapolating": list(one.prediction.extrapolating),
            "assumed": list(one.run.assumed),
        }
        for one in scored
    ]
