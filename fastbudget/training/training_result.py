"""How a training ended, and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint import CheckpointStore
from ..core.errors import RunDirectoryError


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """How a run ended.

    ``stop_reason``: ``completed`` (all steps taken), ``budget``, ``target`` (of early stopping, or the last stage is
    over), ``patience``, ``sigint``, ``sigterm``, ``devices`` (the next stage wants ``wanted_ranks``; resume with them).
    ``best_checkpoint`` is durable and was evaluated: ``best_metrics``. ``final_metrics`` is what ``final_evaluate``
    returned on it, None if the budget left no time. ``spend`` sums the ledger.
    """

    stop_reason: str
    steps: int
    best_checkpoint: Path
    best_step: int
    best_metrics: dict[str, float]
    last_checkpoint: Path
    final_metrics: Any
    spend: dict[str, Any] = field(default_factory=dict)
    wanted_ranks: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data, without ``final_metrics``, which may be anything."""
        return {
            "stop_reason": self.stop_reason,
            "steps": self.steps,
            "best_checkpoint": str(self.best_checkpoint),
            "best_step": self.best_step,
            "best_metrics": self.best_metrics,
            "last_checkpoint": str(self.last_checkpoint),
            "spend": self.spend,
            "wanted_ranks": self.wanted_ranks,
        }


def last_and_best(store: CheckpointStore) -> tuple[Path, Path]:
    """Return the newest and the best checkpoint.

    Raises:
        RunDirectoryError: there is none.
    """
    last = store.latest()
    best = store.best() or last  # no evaluation gave a number: none is better than another
    if last is None or best is None:
        raise RunDirectoryError(f"{store.directory} lost its checkpoints while the run was training.")
    return last, best
