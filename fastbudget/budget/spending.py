"""A ledger's sums as users see them."""

from __future__ import annotations

from typing import Any

from ..core.budget import Budget
from ..core.units import SECONDS_PER_HOUR
from .ledger_record import LedgerRecord


def spend_summary(record: LedgerRecord, budget: Budget, num_devices: int) -> dict[str, Any]:
    """Return a ledger as shown to users, beside the budget's limit in device-hours."""
    limit = budget.in_seconds(num_devices)
    return {
        "device_hours": record.device_hours,
        "budget_device_hours": limit.seconds * num_devices / SECONDS_PER_HOUR,
        "ruling_limit": limit.ruling_limit,
        "usd": budget.usd_for(record.device_hours),
        "kwh": budget.kwh_for(record.device_hours),
        "seconds_by_phase": dict(record.billed_s),
        "unbilled_seconds_by_phase": dict(record.unbilled_s),
        "sessions": record.sessions,
    }


def ledger_summary(record: LedgerRecord) -> dict[str, Any]:
    """Return a ledger in full: its sums, and each session's."""
    return {
        "total_billed_s": record.total_billed_s,
        "device_hours": record.device_hours,
        "seconds_by_phase": record.billed_s,
        "unbilled_seconds_by_phase": record.unbilled_s,
        "closed": record.closed,
        "last_reason": record.last_reason,
        "exhausted": record.exhausted,
        "damaged_lines": record.damaged_lines,
        "sessions": [
            {
                "session": session.number,
                "opened_at": session.opened_at,
                "closed_at": session.closed_at,
                "reason": session.reason,
                "devices": session.devices,
                "steps": session.steps,
                "billed_s": session.total_billed_s,
                "device_hours": session.device_hours,
                "notes": session.notes,
                "seconds_by_phase": session.billed_s,
            }
            for session in record.session_records
        ],
    }
