"""Spending inside a budget: the ledger of what was spent, the reserve for what must still fit, the guard."""

from .budget_guard import CHECKPOINT_DIR, STEP_METRICS_FILE, BudgetGuard
from .finish_reserve import FinishReserve
from .ledger import Ledger, record_unbilled
from .ledger_record import LEDGER_FILE, LedgerRecord, SessionRecord, read_ledger
from .reserves import DurationEstimate
from .shared_budget import SharedBudget
from .spending import ledger_summary, spend_summary

__all__ = [
    "CHECKPOINT_DIR",
    "LEDGER_FILE",
    "STEP_METRICS_FILE",
    "BudgetGuard",
    "DurationEstimate",
    "FinishReserve",
    "Ledger",
    "LedgerRecord",
    "SessionRecord",
    "SharedBudget",
    "ledger_summary",
    "read_ledger",
    "record_unbilled",
    "spend_summary",
]
