"""What was found wrong with a claim."""

from __future__ import annotations

from dataclasses import dataclass

# From worst to best; a report's verdict is its worst finding's kind.
KINDS = ("impossible", "contradictory", "implausible")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: ``"impossible"``: no machine does that. ``"contradictory"``: two figures of the claim don't go
            together. ``"implausible"``: the model of step times says that nobody does that.
        about: what it is about: ``"mfu"``, ``"peak"``, ``"speed"``, ``"memory"``, ``"precision"``, ``"run"``.
        message: what is said, what is known, and what the cause may be.
    """

    kind: str
    about: str
    message: str
