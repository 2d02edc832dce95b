"""Values and primitives every room may use: no torch, no files of other rooms."""

from .budget import Budget, BudgetInSeconds
from .errors import (
    BudgetSpent,
    BudgetTooSmallError,
    ConfigurationError,
    FastbudgetError,
    InvalidInputError,
    MissingExtraError,
    NonFiniteLossError,
    RunDirectoryError,
    SaveError,
)
from .interval import Interval

__all__ = [
    "Budget",
    "BudgetInSeconds",
    "BudgetSpent",
    "BudgetTooSmallError",
    "ConfigurationError",
    "FastbudgetError",
    "Interval",
    "InvalidInputError",
    "MissingExtraError",
    "NonFiniteLossError",
    "RunDirectoryError",
    "SaveError",
]
