"""What the store says of one evaluation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

STATUSES = ("draft", "reviewed", "approved")


@dataclass(frozen=True, kw_only=True)
class SignOff:
    """Who moved a record to which status, when, and why."""

    status: str
    by: str
    signed_at: str
    note: str


@dataclass(frozen=True, kw_only=True)
class StoredRecord:
    """One evaluation as it was recorded.

    ``num_examples`` of ``population_size`` were scored. ``document`` is what the writer recorded: values, intervals,
    seconds. ``sign_offs`` is the whole history, oldest first.
    """

    id: int
    name: str
    created_at: str
    model_hash: str
    preprocessing: str
    data_hash: str
    num_examples: int
    population_size: int
    document: dict[str, Any]
    sign_offs: tuple[SignOff, ...]

    @property
    def status(self) -> str:
        """``"draft"``, ``"reviewed"`` or ``"approved"``."""
        return self.sign_offs[-1].status if self.sign_offs else STATUSES[0]

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the status."""
        return asdict(self) | {"status": self.status, "sign_offs": [asdict(entry) for entry in self.sign_offs]}
