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

    def progress(self, step: int, planned_steps: int, fraction_of_budget: float, text: str) -> None:
        """Move the bar, or print a line per evaluation where there is no terminal."""
        is_evaluation = fraction_of_budget > 0
        if is_evaluation:
            self._values = f"{text} · {fraction_of_budget:.0%} of budget"
        if self._progress is None:
            if is_evaluation:
                self._console.print(f"  step {step:,} of {planned_steps:,}: {escape(self._values)}", highlight=False)
            return
        now = time.monotonic()
        if is_evaluation or now - self._drawn > _REFRESH_S:
            shown = self._values if is_evaluation else f"{text} · {self._values}"
            self._progress.update(self._task, completed=step, text=escape(shown))
            self._drawn = now

    def message(self, text: str) -> None:
        """Show a remark."""
        self._console.print(f"  [yellow]note[/yellow] {escape(text)}", highlight=False)
