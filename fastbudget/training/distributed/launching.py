"""Starting the ranks of a run on this machine, as torchrun does, and ending them all together."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.durable_files import write_json
from ...core.errors import InvalidInputError, RankFailedError
from ...hardware import usable_cpus

RESULT_VARIABLE = "FASTBUDGET_RESULT_FILE"
RESTART_VARIABLE = "FASTBUDGET_RESTART"

# How long ranks that were told to stop may take to save before they are killed.
_STOPPING_S = 60


@dataclass(frozen=True, kw_only=True)
class LaunchOutcome:
    """How the ranks ended.

    ``results`` is what rank 0's training told, or the error that a rank told for all; None: nothing. ``signal`` ended
    them.
    """

    results: dict[str, Any] | None
    signal: signal.Signals | None = None


def launch_ranks(
    command: Sequence[str], *, num_ranks: int, max_restarts: int = 0, environ: Mapping[str, str] | None = None
) -> LaunchOutcome:
    """Run a Python command line on several ranks of this machine, until all end or one fails.

    What the ranks print goes to stderr. SIGINT and SIGTERM are passed on to them, and they have a minute to save.

    Args:
        command: What follows ``python``: a script and its arguments, or ``-m module …``.
        num_ranks: Processes to start.
        max_restarts: How often all ranks are started again, to resume, when one fails.
        environ: Variables for the ranks, beside this process's.

    Raises:
        InvalidInputError: no rank, or more than there are CPUs and GPUs to run on.
        RankFailedError: a rank failed and told no error; its traceback is on stderr.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if num_ranks < 1:
        raise InvalidInputError(f"The number of ranks must be at least 1, got {num_ranks}.")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what it has to tell is told below
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port
        local_addr="localhost",
        max_restarts=max_restarts,
        monitor_interval=0.1,
        **_stopping_time(LaunchConfig),
    )
    with tempfile.TemporaryDirectory(prefix="fastbudget-") as scratch:
        result = Path(scratch) / "result.json"
        variables = {RESULT_VARIABLE: str(result), "OMP_NUM_THREADS": _threads(num_ranks), **(environ or {})}
        ended_by = failure = None
        with _environment(variables), _stdout_on_stderr():
            try:
                elastic_launch(config, sys.executable)("-u", *command)
            except ChildFailedError as error:
                failure = _failure(error)
            except SignalException as error:
                ended_by = signal.Signals(error.sigval)
        results = json.loads(result.read_bytes()) if result.exists() else None
    if failure is not None and "error" not in (results or {}):
        raise failure
    return LaunchOutcome(results=results, signal=ended_by)


def report_result(document: Mapping[str, Any]) -> None:
    """Tell the launcher, if there is one that listens, how this run ended."""
    if path := os.environ.get(RESULT_VARIABLE):
        write_json(Path(path), dict(document))


def is_restarted() -> bool:
    """Whether a launcher started this process again, so that it goes on where the last one saved."""
    return bool(os.environ.get(RESTART_VARIABLE)) or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _stopping_time(config: Any) -> dict[str, Any]:
    known = "shutdown_timeout" in config.__dataclass_fields__  # newer torch; before, 30 s
    return {"shutdown_timeout": _STOPPING_S} if known else {}


def _threads(num_ranks: int) -> str:
    return os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cpus() // num_ranks)))


def _failure(error: Any) -> RankFailedError:
    rank, failure = min(error.failures.items(), key=lambda item: item[1].timestamp)
    code = failure.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        how += (
            " (by the budget's watchdog, if `fastbudget ledger RUN_DIR` says `deadline`; else often for want of memory)"
        )
    return RankFailedError(f"Rank {rank} {how}, so all ranks were ended; what it said is above.")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Keep stdout for this process's own answer: what the ranks inherit as stdout is stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
