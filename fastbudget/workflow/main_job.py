"""Plan, train, evaluate, export, report: one call, one run directory, a record after each stage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..budget import CHECKPOINT_DIR, read_ledger, record_unbilled
from ..checkpoint import CheckpointStore
from ..core.clock import utc_text
from ..core.errors import ConfigurationError, InvalidInputError
from ..core.units import SECONDS_PER_HOUR
from ..hardware import describe_environment
from ..report import write_report
from .configuration import RunConfiguration, load_configuration
from .export_stage import export_workload, load_best
from .first_batch import check_first_batch
from .observer import Observer, Silent
from .plan_stage import calibrate, make_plan, torch_threads, trace
from .run_directory import inspect_run_dir, locked, prepare_run_dir, scratch_beside
from .run_record import RunRecord, read_run_record
from .workload import Workload, build_workload
from .workload_training import WorkloadTraining, has_checkpoints
from .workloads import workload_path

# A process without GPUs holds one device: the machine.
_NUM_DEVICES = 1


def run(
    work: str | Path,
    *,
    run_dir: str | Path | None = None,
    budget: Mapping[str, float] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    export_model: bool = True,
    observer: Observer | None = None,
) -> RunRecord:
    """Run the main job.

    The budget covers training and evaluation. Start-up and calibration before, export and report after, are recorded
    in the ledger as time outside it.

    Args:
        work: An embedded workload's name (``"digits"``, ``"pydocs"``) or a configuration file.
        run_dir: Default ``runs/<name>``.
        budget: Limits that replace the file's, such as ``{"gpu_hours": 0.5}``.
        resume: Continue the run in ``run_dir``; its spending counts.
        overwrite: Replace the run in ``run_dir``.
        export_model: False skips the export.
        observer: Told what happens.

    Raises:
        ConfigurationError: a mistake in the file or in what it names.
        RunDirectoryError: ``run_dir`` is taken, or can't be resumed.
        BudgetTooSmallError: not even one step, save and evaluation fit.
        NonFiniteLossError: the loss became NaN or infinite; the last good checkpoint is kept.
    """
    watcher = observer or Silent()
    start = time.monotonic()
    path = configuration_path(work)
    configuration = load_configuration(path, budget)
    for stage in configuration.train.stages:
        if stage.devices not in (None, _NUM_DEVICES):
            raise ConfigurationError(
                f"{path}: stage {stage.name!r} wants {stage.devices} devices, and `run` trains in one process; use "
                "`fastbudget train`, or leave devices out."
            )
    directory = Path(run_dir) if run_dir is not None else Path("runs") / str(configuration.name)
    with locked(directory):
        return _run_in(directory, path, configuration, start, watcher, resume, overwrite, export_model)


def _run_in(
    directory: Path,
    path: Path,
    configuration: RunConfiguration,
    start: float,
    watcher: Observer,
    resume: bool,
    overwrite: bool,
    export_model: bool,
) -> RunRecord:
    state = inspect_run_dir(directory, resume=resume, overwrite=overwrite)
    watcher.stage("plan")
    workload = build_workload(configuration, path.parent)
    old = read_run_record(directory) if state == "resume" else None
    if old and old.train and old.train["stop_reason"] == "completed":
        finished = old.train["steps"] >= configuration.train.max_steps
    else:
        finished = False
    messages: list[str] = []
    # An old run is only replaced once the new one is known to work and to fit its budget.
    plan = None if finished else _plan(workload, directory, old, messages)
    prepare_run_dir(directory, state)
    record = open_record(directory, path, configuration, old)
    if plan is not None:
        record.plan = plan
        watcher.planned(plan)
        for text in messages:
            _tell(record, watcher, text)
        record.save()
        record_unbilled(directory, "init", time.monotonic() - start)
        watcher.stage("train")
        with torch_threads(plan["threads"]):
            _train(workload, record, directory, watcher, state == "resume")
        record.save()
    else:
        load_best(workload, directory)
        watcher.message("Training was complete already.")
    assert record.train is not None
    if export_model and configuration.export is not None and record.train["stop_reason"] not in ("sigint", "sigterm"):
        watcher.stage("export")
        _export(workload, record, directory)
        record.save()
    watcher.stage("report")
    record.report = str(directory / "report.html")
    record.save()
    write_report(directory, record.to_json())
    return record


def configuration_path(work: str | Path) -> Path:
    """Return the configuration file of an embedded workload's name, or of a path."""
    text = str(work)
    if isinstance(work, Path) or text.endswith((".yaml", ".yml")) or "/" in text:
        return Path(work)
    return workload_path(text)


def open_record(directory: Path, source: Path, configuration: RunConfiguration, old: RunRecord | None) -> RunRecord:
    """Return a new run's record, or an old one's with the configuration it goes on with; saved."""
    settings = configuration.model_dump()
    if old is not None:
        changed = [key for key in settings if key != "budget" and settings[key] != old.configuration.get(key)]
        if changed:
            old.messages.append(f"Resumed with a changed configuration: {', '.join(changed)}.")
        old.configuration, old.run_dir = settings, str(directory)
        record = old
    else:
        record = RunRecord(
            name=str(configuration.name),
            run_dir=str(directory),
            source=str(source.resolve()),
            started_at=utc_text(time.time()),
            configuration=settings,
            environment=asdict(describe_environment()),
        )
    record.save()
    return record


def _plan(workload: Workload, directory: Path, old: RunRecord | None, messages: list[str]) -> dict[str, Any]:
    check_first_batch(workload)
    try:
        traced = trace(workload)
    except InvalidInputError as error:
        traced = None
        messages.append(f"FLOPs and peak memory are unknown: {error}")
    taken, spent_s = 0, 0.0
    if old is not None:
        spent_s = read_ledger(directory).total_billed_s
        if (directory / CHECKPOINT_DIR).exists():
            paths = CheckpointStore(directory / CHECKPOINT_DIR).paths()
            taken = int(paths[-1].name.split("_")[1]) if paths else 0
    with scratch_beside(directory) as scratch:
        # A resumed run keeps its number of threads: another would change the last bits of its results.
        threads = old.plan["threads"] if old and old.plan else workload.configuration.threads
        calibration = calibrate(workload, scratch, threads)
    plan = make_plan(workload, traced, calibration, num_devices=_NUM_DEVICES, spent_s=spent_s, steps_taken=taken)
    if plan["cut_by_budget"]:
        messages.append(
            f"The budget is spent after about {plan['planned_steps']:,} of {plan['requested_steps']:,} steps; the "
            "learning rate falls with the budget instead of the steps."
        )
    if workload.test is None:
        messages.append(
            "The data has no test split: the validation split both chooses and judges the checkpoint, so the final "
            "figures are optimistic."
        )
    return plan


def _tell(record: RunRecord, watcher: Observer, text: str) -> None:
    if text not in record.messages:
        record.messages.append(text)
    watcher.message(text)


def _train(workload: Workload, record: RunRecord, directory: Path, watcher: Observer, continued: bool) -> None:
    plan = record.plan
    assert plan is not None

    def sink(line: dict[str, Any]) -> None:
        if "loss" in line:
            watcher.stepped(line["step"], plan["planned_steps"], line["loss"])
        elif "metrics" in line:
            used = line["spent_s"] / SECONDS_PER_HOUR * _NUM_DEVICES / plan["budget_device_hours"]
            watcher.evaluated(line["step"], plan["planned_steps"], line["metrics"], used)

    training = WorkloadTraining(
        workload,
        directory,
        decay_over=plan["decay_over"],
        final_evaluate_cost=plan["final_evaluation_cost"],
        num_devices=_NUM_DEVICES,
        before_final=lambda: watcher.stage("evaluate"),
        sinks=[sink],
    )
    result = training.fit(resume=continued and has_checkpoints(directory))
    record.train, record.evaluate = training.train_document(result), training.evaluation_document(result)
    left_out = result.final_metrics is None and workload.test is not None and record.evaluate is not None
    if left_out and result.stop_reason == "budget":
        text = "The budget left no time for the test split; the figures are of the validation split: optimistic."
        _tell(record, watcher, text)


def _export(workload: Workload, record: RunRecord, directory: Path) -> None:
    start = time.monotonic()
    artifact = export_workload(workload, directory / "export")
    seconds = time.monotonic() - start
    record_unbilled(directory, "export", seconds)
    manifest = artifact.manifest
    record.export = {
        "path": str(artifact.path),
        "target": manifest["target"],
        "opset": manifest["opset"],
        "bytes": sum(file["bytes"] for file in manifest["files"].values()),
        "seconds": seconds,
        **manifest["verification"],
    }
