"""The bar of an evaluation, with the interval so far, on a terminal's stderr."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..evaluation import EvaluationProgress


class EvaluationBar:
    """Call it with each `EvaluationProgress`. Draws nothing where stderr is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> EvaluationBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, progress: EvaluationProgress) -> None:
        """Move the bar."""
        if not self._console.is_terminal:
            return
        if self._progress is None:
            self._start(progress.planned)
        text = ""
        if progress.value is not None:
            text = f"{progress.metric} {progress.value:.4f} ({progress.low:.4f} to {progress.high:.4f})"
        self._progress.update(self._task, completed=progress.num_examples, text=text)

    def _start(self, total: int | None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=self._console,
        )
        self._task = self._progress.add_task("evaluate", total=total, text="")
        self._progress.start()
