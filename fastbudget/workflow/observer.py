"""What the main job tells whoever watches it."""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Receives what happens, in order. The command line draws it; the library ignores it by default."""

    def stage(self, name: str) -> None:
        """A stage begins: plan, train, evaluate, export, report."""
        ...

    def planned(self, plan: dict[str, Any]) -> None:
        """The plan's record."""
        ...

    def progress(self, step: int, planned_steps: int, fraction_of_budget: float, text: str) -> None:
        """A training step was taken."""
        ...

    def message(self, text: str) -> None:
        """Something the user should know."""
        ...


class Silent:
    """Ignores everything."""

    def stage(self, name: str) -> None:
        """Ignore."""

    def planned(self, plan: dict[str, Any]) -> None:
        """Ignore."""

    def progress(self, step: int, planned_steps: int, fraction_of_budget: float, text: str) -> None:
        """Ignore."""

    def message(self, text: str) -> None:
        """Ignore."""
