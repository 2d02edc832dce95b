"""Scoring a model on held-out data, with intervals."""

from .evaluator import EvaluationRecord, evaluate
from .prediction_files import Predictions, read_predictions

__all__ = ["EvaluationRecord", "Predictions", "evaluate", "read_predictions"]
