"""MLflow as a sink of `fastbudget.Trainer`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from ..core.errors import MissingExtraError
from .background_sink import BackgroundSink


class MLflowSink(BackgroundSink):
    """Logs the numbers of each record to one MLflow run. Close it, or use it in a ``with`` block.

    Args:
        experiment: name of the experiment; made when missing.
        tracking_uri: where MLflow keeps its runs; None: what its environment says.
        run_name: None: MLflow makes one up.
        params: settings shown with the run.

    Raises:
        MissingExtraError: MLflow is not installed.
    """

    def __init__(
        self,
        experiment: str,
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        if find_spec("mlflow") is None:
            raise MissingExtraError("MLflowSink needs mlflow: `pip install 'fastbudget[mlflow]'`.")
        super().__init__(partial(_MLflowRun, experiment, tracking_uri, run_name, dict(params or {})), name="MLflow")


class _MLflowRun:
    """One run through the client, which leaves the process's active run alone."""

    def __init__(self, experiment: str, tracking_uri: str | None, run_name: str | None, params: dict[str, Any]) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri)
        known = self._client.get_experiment_by_name(experiment)
        experiment_id = known.experiment_id if known else self._client.create_experiment(experiment)
        self._run_id = self._client.create_run(experiment_id, run_name=run_name).info.run_id
        for name, value in params.items():
            self._client.log_param(self._run_id, name, value)

    def write(self, step: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run_id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        self._client.set_terminated(self._run_id)
