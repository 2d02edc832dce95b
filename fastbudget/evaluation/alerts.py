"""Signs that a result is no result: something is broken rather than good or bad."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..metrics import MetricValue
from .records import EvaluationRecord

_LEAST_HISTORY, _MOST_HISTORY = 5, 20
# Standard errors beyond which a value has another cause than chance or training's usual pace.
_FAR = 4.0
_LEAST_EXAMPLES = 30
_ONE_CLASS_SHARE = 0.99
# The median absolute deviation times this estimates a normal standard deviation.
_MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Something abnormal.

    Attributes:
        kind: ``"outside_history"``, ``"nan"``, ``"single_class"`` or ``"chance"``.
        message: In words, with the numbers.
        metric: It concerns; None if all.
    """

    kind: str
    message: str
    metric: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def find_alerts(
    record: EvaluationRecord,
    *,
    history: Sequence[EvaluationRecord | Mapping[str, float]] = (),
    predictions: Any = None,
    references: Any = None,
) -> list[Alert]:
    """Look for what is abnormal in a result.

    - A value far outside the history's: more than 4 standard errors from the median of the last 5 to 20 values, where
      the error joins their spread (median absolute deviation) and the uncertainty of this value. A leap upward counts
      too: leaked labels look like that.
    - Scores that are NaN.
    - At least 99% of the predictions are one class, though the references aren't.
    - The accuracy's interval reaches down to that of always answering the commonest class.

    Args:
        record: The result.
        history: Earlier results, oldest first, as records or as plain values by metric.
        predictions: Labels [n] or class scores [n, C] of classification.
        references: Labels [n].

    Raises:
        InvalidInputError: predictions and references of different lengths.
    """
    alerts = [
        *_nan_alerts(record),
        *(alert for name, value in record.values.items() for alert in _history_alerts(name, value, history)),
    ]
    if references is not None:
        alerts += _class_alerts(record, predictions, references)
    return alerts


def _nan_alerts(record: EvaluationRecord) -> list[Alert]:
    alerts = []
    num_nan = getattr(record, "num_nan", 0)
    if num_nan:
        share = num_nan / record.num_examples
        alerts.append(Alert(kind="nan", message=f"{num_nan:,} predictions ({share:.2%}) are NaN and counted as wrong."))
    for name, value in record.values.items():
        if not math.isfinite(value.value):
            alerts.append(Alert(kind="nan", metric=name, message=f"{name} is {value.value}."))
    return alerts


def _history_alerts(
    name: str, value: MetricValue, history: Sequence[EvaluationRecord | Mapping[str, float]]
) -> list[Alert]:
    past = [number for number in (_past_value(entry, name) for entry in history) if number is not None][-_MOST_HISTORY:]
    if len(past) < _LEAST_HISTORY or not math.isfinite(value.value):
        return []
    center = statistics.median(past)
    spread = _MAD_TO_DEVIATION * statistics.median(abs(number - center) for number in past)
    own = (value.high - value.low) / (2 * NormalDist().inv_cdf(0.5 + value.confidence / 2))
    # Earlier values were measured with about the same uncertainty, which their spread doesn't show if they are few.
    error = math.sqrt(spread**2 + 2 * own**2)
    if abs(value.value - center) <= _FAR * error:
        return []
    return [
        Alert(
            kind="outside_history",
            metric=name,
            message=f"{name} is {value.value:.4g}, far from the {center:.4g} ± {_FAR * error:.2g} that the last "
            f"{len(past)} results lead to expect.",
        )
    ]


def _past_value(entry: EvaluationRecord | Mapping[str, float], name: str) -> float | None:
    if isinstance(entry, Mapping):
        number = entry.get(name)
    else:
        number = entry.values[name].value if name in entry.values else None
    return None if number is None or not math.isfinite(number) else float(number)


def _class_alerts(record: EvaluationRecord, predictions: Any, references: Any) -> list[Alert]:
    truth = _as_array(references)
    if truth.ndim != 1 or len(truth) < _LEAST_EXAMPLES or truth.dtype.kind == "f":
        return []
    common, commonest_share = _commonest(truth)
    alerts = []
    if predictions is not None:
        labels = _labels(predictions, len(truth))
        name, share = _commonest(labels)
        if share >= _ONE_CLASS_SHARE and commonest_share < _ONE_CLASS_SHARE:
            alerts.append(
                Alert(
                    kind="single_class",
                    message=f"{share:.1%} of the predictions are class {name}, and {commonest_share:.1%} of the "
                    f"references are the commonest class, {common}.",
                )
            )
    accuracy = record.values.get("accuracy")
    if accuracy is not None and accuracy.low <= commonest_share:
        alerts.append(
            Alert(
                kind="chance",
                metric="accuracy",
                message=f"accuracy is {accuracy.value:.4f} ({accuracy.low:.4f} to {accuracy.high:.4f}); always "
                f"answering {common} reaches {commonest_share:.4f}.",
            )
        )
    return alerts


def _labels(predictions: Any, count: int) -> npt.NDArray[Any]:
    array = _as_array(predictions)
    if len(array) != count:
        raise InvalidInputError(f"predictions and references must have the same length, got {len(array)} and {count}.")
    return np.nan_to_num(array, nan=-np.inf).argmax(1) if array.ndim == 2 else array


def _as_array(values: Any) -> npt.NDArray[Any]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _commonest(labels: npt.NDArray[Any]) -> tuple[Any, float]:
    names, counts = np.unique(labels, return_counts=True)
    best = int(counts.argmax())
    return names[best], float(counts[best] / len(labels))
