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

    def stepped(self, step: int, planned_steps: int, loss: float) -> None:
        """A training step was taken."""
        ...

    def evaluated(self, step: int, planned_steps: int, metrics: dict[str, float], budget_used: float) -> None:
        """The model was evaluated; ``budget_used`` is the share of the budget spent so far."""
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

    def stepped(self, step: int, planned_steps: int, loss: float) -> None:
        """Ignore."""

    def evaluated(self, step: int, planned_steps: int, metrics: dict[str, float], budget_used: float) -> None:
        """Ignore."""

    def message(self, text: str) -> None:
        """Ignore."""
