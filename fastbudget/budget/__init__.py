"""Spending inside a budget: the ledger of what was spent, the reserve for what must still fit, the guard."""

from typing import TYPE_CHECKING

from ..core.public_names import lazy_names

# Reading a ledger needs no torch, the guard does.
_SOURCES = {
    "CHECKPOINT_DIR": "budget_guard",
    "LEDGER_FILE": "ledger_record",
    "STEP_METRICS_FILE": "budget_guard",
    "BudgetGuard": "budget_guard",
    "DurationEstimate": "reserves",
    "FinishReserve": "finish_reserve",
    "Ledger": "ledger",
    "LedgerRecord": "ledger_record",
    "SessionRecord": "ledger_record",
    "SharedBudget": "shared_budget",
    "ledger_summary": "spending",
    "read_ledger": "ledger_record",
    "record_unbilled": "ledger",
    "spend_summary": "spending",
}

__all__ = sorted(_SOURCES)

if TYPE_CHECKING:
    from .budget_guard import CHECKPOINT_DIR as CHECKPOINT_DIR
    from .budget_guard import STEP_METRICS_FILE as STEP_METRICS_FILE
    from .budget_guard import BudgetGuard as BudgetGuard
    from .finish_reserve import FinishReserve as FinishReserve
    from .ledger import Ledger as Ledger
    from .ledger import record_unbilled as record_unbilled
    from .ledger_record import LEDGER_FILE as LEDGER_FILE
    from .ledger_record import LedgerRecord as LedgerRecord
    from .ledger_record import SessionRecord as SessionRecord
    from .ledger_record import read_ledger as read_ledger
    from .reserves import DurationEstimate as DurationEstimate
    from .shared_budget import SharedBudget as SharedBudget
    from .spending import ledger_summary as ledger_summary
    from .spending import spend_summary as spend_summary
else:
    __getattr__, __dir__ = lazy_names(__name__, globals(), _SOURCES)
