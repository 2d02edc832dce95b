"""Spending inside a budget: the ledger of what was spent, the reserve for what must still fit, the guard."""

from .budget_guard import CHECKPOINT_DIR, BudgetGuard, spend_summary
from .ledger import LEDGER_FILE, Ledger, LedgerRecord, read_ledger, record_unbilled
from .reserves import DurationEstimate

__all__ = [
    "CHECKPOINT_DIR",
    "LEDGER_FILE",
    "BudgetGuard",
    "DurationEstimate",
    "Ledger",
    "LedgerRecord",
    "read_ledger",
    "record_unbilled",
    "spend_summary",
]
