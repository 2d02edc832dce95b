"""Scoring a model on held-out data, with intervals."""

from .activation_cache import ActivationCache
from .evaluator import evaluate
from .example_data import HashedData
from .example_views import Examples, as_examples
from .frozen_prefix import FrozenPrefix
from .prediction_files import Predictions, read_predictions
from .recorded import read_record
from .records import EvaluationProgress, EvaluationRecord, ExampleScores
from .tiers import TIERS, Tier
from .weight_change import ChangeScore, change_score

__all__ = [
    "TIERS",
    "ActivationCache",
    "ChangeScore",
    "EvaluationProgress",
    "EvaluationRecord",
    "ExampleScores",
    "Examples",
    "FrozenPrefix",
    "HashedData",
    "Predictions",
    "Tier",
    "as_examples",
    "change_score",
    "evaluate",
    "read_predictions",
    "read_record",
]
