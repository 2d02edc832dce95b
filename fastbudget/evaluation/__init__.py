"""Scoring a model on held-out data, with intervals."""

from .activation_cache import ActivationCache
from .evaluator import EvaluationRecord, evaluate
from .example_views import Examples, as_examples
from .frozen_prefix import FrozenPrefix
from .prediction_files import Predictions, read_predictions
from .weight_change import ChangeScore, change_score

__all__ = [
    "ActivationCache",
    "ChangeScore",
    "EvaluationRecord",
    "Examples",
    "FrozenPrefix",
    "Predictions",
    "as_examples",
    "change_score",
    "evaluate",
    "read_predictions",
]
