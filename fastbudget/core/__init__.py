"""Values and primitives every room may use: no torch, no files of other rooms."""

from .budget import Budget, BudgetInSeconds
from .errors import (
    BudgetSpent,
    BudgetTooSmallError,
    CheckpointError,
    ConfigurationError,
    DataFileError,
    EvaluationStoreError,
    FastbudgetError,
    InvalidInputError,
    MissingExtraError,
    NonFiniteLossError,
    OutOfMemoryError,
    RankFailedError,
    RunDirectoryError,
    SaveError,
)
from .interval import Interval
from .young_daly import checkpoint_interval

__all__ = [
    "Budget",
    "BudgetInSeconds",
    "BudgetSpent",
    "BudgetTooSmallError",
    "CheckpointError",
    "ConfigurationError",
    "DataFileError",
    "EvaluationStoreError",
    "FastbudgetError",
    "Interval",
    "InvalidInputError",
    "MissingExtraError",
    "NonFiniteLossError",
    "OutOfMemoryError",
    "RankFailedError",
    "RunDirectoryError",
    "SaveError",
    "checkpoint_interval",
]
