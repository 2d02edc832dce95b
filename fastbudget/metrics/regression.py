"""Errors of predicted numbers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..core.errors import InvalidInputError
from ..stats import bootstrap_ratio
from .arrays import to_numpy
from .metric_protocol import Metric, MetricValue
from .registered import register

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ExampleErrors:
    """One error per example, float64 [n]."""

    errors: FloatArray


class _MeanError(Metric[ExampleErrors]):
    """The mean over examples of an error; an example of several numbers counts with their mean."""

    higher_is_better: ClassVar[bool] = False

    @abstractmethod
    def _error(self, difference: FloatArray) -> FloatArray:
        """Return what the subclass measures."""

    def init(self) -> ExampleErrors:
        """Return the state of no examples."""
        return ExampleErrors(np.zeros(0))

    def update(self, state: ExampleErrors, predictions: Any, references: Any) -> ExampleErrors:
        """Add predictions and references of the same shape [n] or [n, …].

        Raises:
            InvalidInputError: other shapes (nothing is broadcast), or a number that isn't finite.
        """
        predicted = np.asarray(to_numpy(predictions), np.float64)
        reference = np.asarray(to_numpy(references), np.float64)
        if predicted.shape != reference.shape or predicted.ndim == 0:
            raise InvalidInputError(
                f"predictions and references must have the same shape [n, …], got {list(predicted.shape)} and "
                f"{list(reference.shape)}; squeeze or unsqueeze one of them."
            )
        for name, values in (("predictions", predicted), ("references", reference)):
            if not np.isfinite(values).all():
                row = int(np.argwhere(~np.isfinite(values))[0][0])
                raise InvalidInputError(f"{name}[{row}] holds NaN or infinity: no error can be measured against it.")
        if len(predicted) == 0:
            return state
        errors = self._error(predicted - reference).reshape(len(predicted), -1).mean(axis=1)
        return self.merge(state, ExampleErrors(errors))

    def merge(self, a: ExampleErrors, b: ExampleErrors) -> ExampleErrors:
        """Return the examples of both, in order."""
        return ExampleErrors(np.concatenate([a.errors, b.errors]))

    def result(self, state: ExampleErrors) -> float:
        """Return the mean error."""
        if len(state.errors) == 0:
            raise InvalidInputError(f"{self.name or 'The metric'} needs at least one example.")
        return float(state.errors.mean())

    def interval(
        self, state: ExampleErrors, confidence: float = 0.95, groups: npt.NDArray[np.int64] | None = None
    ) -> MetricValue:
        """Return the mean error with a bootstrap interval over examples, or over whole groups of them."""
        value = self.result(state)
        ones = np.ones(len(state.errors))
        low, high = bootstrap_ratio(state.errors, ones, groups=groups, confidence=confidence)
        return MetricValue(
            value=value,
            low=low,
            high=high,
            confidence=confidence,
            method="bootstrap over examples (approximate)",
            num_examples=len(state.errors),
        )


@register("mse", task="regression")
class MeanSquaredError(_MeanError):
    """Mean squared error."""

    def _error(self, difference: FloatArray) -> FloatArray:
        return difference**2


@register("mae", task="regression")
class MeanAbsoluteError(_MeanError):
    """Mean absolute error."""

    def _error(self, difference: FloatArray) -> FloatArray:
        return np.abs(difference)
