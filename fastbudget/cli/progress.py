"""Progress on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_REFRESH_S = 0.1


class TerminalObserver:
    """Draws what the main job tells."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: Any = None
        self._planned_steps = 0
        self._drawn = 0.0
        self._values = ""

    def __enter__(self) -> TerminalObserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def stage(self, name: str) -> None:
        """Announce a stage."""
        self._stop()
        self._console.print(f"[bold]{escape(name)}[/bold]")
        if name == "train" and self._console.is_terminal:
            self._progress = Progress(
                TextColumn("  "),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[text]}"),
                console=self._console,
            )
            self._task = self._progress.add_task("train", total=self._planned_steps, text="")
            self._progress.start()

    def planned(self, plan: dict[str, Any]) -> None:
        """Show the plan."""
        from ..report import plan_table

        self._planned_steps = plan["planned_steps"]
        self._console.print(plan_table(plan))

    def stepped(self, step: int, planned_steps: int, loss: float) -> None:
        """Move the bar, a few times a second."""
        now = time.monotonic()
        if self._progress is not None and now - self._drawn > _REFRESH_S:
            self._progress.update(self._task, completed=step, text=escape(f"loss {loss:.3f} · {self._values}"))
            self._drawn = now

    def evaluated(self, step: int, planned_steps: int, metrics: dict[str, float], budget_used: float) -> None:
        """Show the metrics beside the bar, or on a line of their own where there is no terminal."""
        values = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self._values = f"{values} · {budget_used:.0%} of budget"
        if self._progress is not None:
            self._progress.update(self._task, completed=step, text=escape(self._values))
        else:
            self._console.print(f"  step {step:,} of {planned_steps:,}: {escape(self._values)}", highlight=False)

    def message(self, text: str) -> None:
        """Show a remark."""
        self._console.print(f"  [yellow]note[/yellow] {escape(text)}", highlight=False)
