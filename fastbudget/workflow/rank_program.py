"""What `fastbudget train` runs on each rank. Its argument is the JSON of one task."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sized
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ConfigurationError, FastbudgetError, RankFailedError
from ..training import Trainer
from ..training.distributed import report_result
from .configuration import load_configuration
from .factories import call_factory, import_factory
from .workload import build_workload
from .workload_training import WorkloadTraining, has_checkpoints


def main() -> None:
    """Train as the task says; what the user must know of an error is told by the launcher, once."""
    task = json.loads(sys.argv[1])
    if torch.cuda.is_available() and torch.cuda.device_count() > (rank := int(os.environ.get("LOCAL_RANK", "0"))):
        torch.cuda.set_device(rank)  # where "cuda" alone leads
    try:
        if "function" in task:
            train_function(task["function"], resume=task["resume"])
        else:
            _train_file(task)
    except RankFailedError as error:
        raise SystemExit(f"fastbudget: {error}") from None
    except FastbudgetError as error:
        report_result({"error": {"type": type(error).__name__, "message": str(error)}})
        raise SystemExit(1) from None


def train_function(reference: str, *, resume: bool) -> None:
    """Run the trainer that a function returns.

    Raises:
        ConfigurationError: it can't be imported, raises, or returns something else.
    """
    trainer = call_factory(import_factory(reference, "WORK", Path.cwd()), reference, "WORK")
    if not isinstance(trainer, Trainer):
        raise ConfigurationError(f"{reference!r} must return an fb.Trainer, got a {type(trainer).__name__}.")
    trainer.fit(resume=resume)


def _train_file(task: dict[str, Any]) -> None:
    path, run_dir = Path(task["file"]), Path(task["run_dir"])
    workload = build_workload(load_configuration(path, task["budget"]), path.parent)
    if workload.configuration.threads is not None:
        torch.set_num_threads(workload.configuration.threads)
    split = workload.validation if workload.test is None else workload.test
    training = WorkloadTraining(
        workload,
        run_dir,
        decay_over="budget",
        final_evaluate_cost=_relative_size(split, workload.validation),
        distributed=task["strategy"],
        sinks=[_tell],
    )
    result = training.fit(resume=has_checkpoints(run_dir))
    if int(os.environ.get("RANK", "0")) == 0:
        documents = {"train": training.train_document(result), "evaluate": training.evaluation_document(result)}
        report_result(result.to_json() | documents)


def _relative_size(split: Any, other: Any) -> float:
    """Return how many times as long a split is; 1 where nothing says."""
    return len(split) / len(other) if isinstance(split, Sized) and isinstance(other, Sized) else 1.0


def _tell(line: dict[str, Any]) -> None:
    if "metrics" in line:
        values = ", ".join(f"{name} {value:.4g}" for name, value in line["metrics"].items())
        sys.stderr.write(f"  step {line['step']:,}: {values}\n")


if __name__ == "__main__":
    main()
