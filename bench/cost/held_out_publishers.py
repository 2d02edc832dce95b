"""Predict each publisher's runs by a model fitted on the others: the test that tells how a new source would do."""

from __future__ import annotations

from collections.abc import Sequence

from fit_runtime import leave_one_publisher_out
from published_runs import PublishedRun
from row_cells import NotModeled
from run_scores import Predict, Prediction

from fastbudget.core.errors import InvalidInputError
from fastbudget.cost.runtime.step_time import estimate_step_time
from fastbudget.cost.runtime.whole_run import device_hours


def predictor(runs: Sequence[PublishedRun]) -> Predict:
    """Return a prediction by constants and intervals fitted without the publisher of the run asked for."""
    constants = leave_one_publisher_out(runs)

    def predict(run: PublishedRun) -> Prediction:
        own = constants[run.publisher]
        try:
            time = estimate_step_time(run.shape, run.layout, run.device, software=run.software, constants=own)
        except InvalidInputError as error:
            raise NotModeled("the estimator refuses the layout") from error
        tokens = run.measure.tokens
        if tokens is None:
            return Prediction(value=time.seconds, extrapolating=time.extrapolating)
        hours = device_hours(time.seconds, tokens / run.tokens_per_step, run.layout, own)
        return Prediction(value=hours, extrapolating=time.extrapolating)

    return predict
