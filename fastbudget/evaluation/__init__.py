"""Scoring a model on held-out data, with intervals."""

from .evaluator import evaluate
from .example_data import HashedData
from .recorded import read_record
from .records import EvaluationProgress, EvaluationRecord, ExampleScores
from .tiers import TIERS, Tier

__all__ = [
    "TIERS",
    "EvaluationProgress",
    "EvaluationRecord",
    "ExampleScores",
    "HashedData",
    "Tier",
    "evaluate",
    "read_record",
]
