"""Training alone, on one rank or several: of a configuration file, of a function that makes a trainer, of a script."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..core import errors
from ..core.errors import ConfigurationError, InvalidInputError
from ..training.distributed import RESTART_VARIABLE, launch_ranks
from .configuration import load_configuration
from .main_job import configuration_path, open_record
from .run_directory import inspect_run_dir, locked, prepare_run_dir
from .run_record import read_run_record

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How `train` goes about it.

    ``strategy``: ``"ddp"`` or ``"fsdp2"``, where several ranks train. ``budget``: limits that replace the file's.
    ``arguments``: of a script. ``max_restarts``: how often all ranks are started again when one fails.
    """

    num_ranks: int = 1
    strategy: str | None = None
    run_dir: str | None = None
    budget: Mapping[str, float] = field(default_factory=dict)
    resume: bool = False
    overwrite: bool = False
    max_restarts: int = 0
    arguments: Sequence[str] = ()


def train(work: str, options: TrainOptions) -> dict[str, Any]:
    """Train on ``options.num_ranks`` ranks of this machine; return how it ended, as plain data.

    ``stop_reason`` is that of `TrainingResult`, ``sigint`` or ``sigterm`` where the ranks ended without a word, None
    where a script told nothing. Where a stage asks for another number of devices, as many ranks are started and resume.

    Args:
        work: A configuration file or an embedded workload's name; ``module:function`` of a function without arguments
            that returns an `fb.Trainer`; or a Python script, which runs on each rank as under torchrun.
        options: See `TrainOptions`.

    Raises:
        ConfigurationError: a mistake in the file or in what it names.
        InvalidInputError: an option that doesn't go with the work, or ranks that don't go with the data.
        RankFailedError: a rank failed; its traceback is on stderr.
    """
    if work.endswith(".py"):
        _refuse(options, work, "run_dir", "budget", "overwrite", "resume", "strategy")
        if not Path(work).is_file():
            raise ConfigurationError(f"There is no script {work}.")
        return _launch([work, *options.arguments], options)
    _refuse(options, work, "arguments")
    task = {"resume": options.resume, "strategy": options.strategy}
    if _FACTORY.fullmatch(work):
        _refuse(options, work, "run_dir", "budget", "overwrite")
        return _launch(_rank_program(task | {"function": work}), options)
    return _train_configured(configuration_path(work), task, options)


def _refuse(options: TrainOptions, work: str, *names: str) -> None:
    for name in names:
        if getattr(options, name):
            raise InvalidInputError(f"{name} is not for {work}, which says it by itself; leave it out.")


def _rank_program(task: Mapping[str, Any]) -> list[str]:
    return ["-P", "-m", "fastbudget.workflow.rank_program", json.dumps(task)]


def _train_configured(path: Path, task: Mapping[str, Any], options: TrainOptions) -> dict[str, Any]:
    configuration = load_configuration(path, options.budget)
    check_devices(configuration.device, options.num_ranks)
    directory = Path(options.run_dir) if options.run_dir is not None else Path("runs") / str(configuration.name)
    with locked(directory):
        state = inspect_run_dir(directory, resume=options.resume, overwrite=options.overwrite)
        old = read_run_record(directory) if state == "resume" else None
        prepare_run_dir(directory, state)
        record = open_record(directory, path, configuration, old)
        task = {**task, "file": str(path), "run_dir": str(directory), "budget": dict(options.budget)}
        found = _launch(_rank_program(task), options)
        record.train, record.evaluate = found.get("train"), found.get("evaluate")
        record.save()
    return found


def check_devices(device: str, num_ranks: int) -> None:
    """Raise InvalidInputError where there are more ranks than GPUs to train on."""
    if device == "cpu" or not torch.cuda.is_available():
        return
    if num_ranks > torch.cuda.device_count():
        raise InvalidInputError(
            f"{num_ranks} ranks need as many GPUs, and torch sees {torch.cuda.device_count()}; start fewer, or train "
            "on the CPU with `device: cpu`."
        )


def _launch(command: Sequence[str], options: TrainOptions) -> dict[str, Any]:
    num_ranks, environ = options.num_ranks, dict[str, str]()
    while True:
        outcome = launch_ranks(command, num_ranks=num_ranks, max_restarts=options.max_restarts, environ=environ)
        found = dict(outcome.results or {})
        if "error" in found:
            raise getattr(errors, found["error"]["type"])(found["error"]["message"])
        if outcome.signal is not None:
            found.setdefault("stop_reason", outcome.signal.name.lower())
        if found.get("stop_reason") != "devices":
            return {"stop_reason": None, **found, "ranks": num_ranks}
        num_ranks, environ = found["wanted_ranks"], {RESTART_VARIABLE: "1"}
