"""Scoring a model on held-out data, with intervals."""

from .activation_cache import ActivationCache
from .comparison import compare
from .evaluator import evaluate
from .example_data import HashedData
from .example_views import Examples, as_examples
from .flip_prediction import FlipRates
from .frozen_prefix import FrozenPrefix
from .prediction_files import Predictions, read_predictions
from .recorded import read_record
from .records import EvaluationProgress, EvaluationRecord, ExampleScores
from .tiers import TIERS, Tier
from .verdict import Verdict
from .weight_change import ChangeScore, change_score

__all__ = [
    "TIERS",
    "ActivationCache",
    "ChangeScore",
    "EvaluationProgress",
    "EvaluationRecord",
    "ExampleScores",
    "Examples",
    "FlipRates",
    "FrozenPrefix",
    "HashedData",
    "Predictions",
    "Tier",
    "Verdict",
    "as_examples",
    "change_score",
    "compare",
    "evaluate",
    "read_predictions",
    "read_record",
]
