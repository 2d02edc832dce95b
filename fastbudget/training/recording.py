"""All that a run writes down while it goes: steps, evaluations, speed, and what it was made with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from ..budget import BudgetGuard
from .distributed import RankLog, Ranks
from .losses import Loss
from .metrics_log import MetricsLog, Sink
from .provenance import append_session
from .step_records import StepRecords
from .throughput import Throughput, estimated_flops, peak_of
from .training_step import TrainingStep


class Recording:
    """The records of one session; with several ranks, rank 0 writes them.

    Attributes:
        log: Takes any record at once.
        steps: Takes steps; written by `write`.
        throughput: Adds up steps.
    """

    def __init__(
        self, guard: BudgetGuard, run_dir: Path, training_step: TrainingStep, sinks: Sequence[Sink], ranks: Ranks | None
    ) -> None:
        device, precision = training_step.device, training_step.precision.name
        self.log = MetricsLog(run_dir, sinks) if ranks is None or ranks.is_first else RankLog(run_dir)
        self.steps = StepRecords(self.log, device, run_dir)
        self.throughput = Throughput(
            guard,
            device,
            peak_flops_per_s=peak_of(device, precision),
            flops_of=None if ranks is not None and ranks.model.is_sharded else _flops_of(training_step),
            num_ranks=1 if ranks is None else ranks.world_size,
        )

    def write(self, step: int) -> None:
        """Write the steps taken so far and, when it is time, how fast they were.

        Raises:
            NonFiniteLossError: a loss that was read isn't finite.
        """
        self.steps.write()
        if self.throughput.is_due():
            self.log.write(self.throughput.record(step))
        self.log.flush()


@contextmanager
def recording(
    guard: BudgetGuard,
    run_dir: Path,
    training_step: TrainingStep,
    sinks: Sequence[Sink],
    ranks: Ranks | None,
    session: dict[str, Any],
    current_step: Callable[[], int],
) -> Iterator[Recording]:
    """Record a session: at the guard's looks, and in the end all that is left.

    Args:
        guard: Looks at the clock a few times a second.
        run_dir: Gets the files.
        training_step: Whose steps they are.
        sinks: Told of each record.
        ranks: None for one process.
        session: What it is made with; see `provenance`.
        current_step: Steps taken.
    """
    if ranks is None or ranks.is_first:
        append_session(run_dir, session)
    records = Recording(guard, run_dir, training_step, sinks, ranks)
    guard.at_looks(lambda: records.write(current_step()))
    with closing(records.log):
        try:
            yield records
        finally:
            records.steps.write_read()


def _flops_of(training_step: TrainingStep) -> Callable[[Any], float | None]:
    model: torch.nn.Module = training_step.model
    loss: Loss = training_step.options.loss
    return lambda batch: estimated_flops(model, loss, batch, training_step.precision.name)
