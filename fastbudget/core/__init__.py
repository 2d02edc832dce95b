"""Values and primitives every room may use: no torch, no files of other rooms."""

from .budget import Budget, BudgetInSeconds
from .errors import (
    BudgetTooSmallError,
    ConfigurationError,
    DataFileError,
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
    "BudgetTooSmallError",
    "ConfigurationError",
    "DataFileError",
    "FastbudgetError",
    "Interval",
    "InvalidInputError",
    "MissingExtraError",
    "NonFiniteLossError",
    "RunDirectoryError",
    "SaveError",
]
