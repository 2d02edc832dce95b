"""Scoring a model on held-out data, with intervals."""

from .evaluator import EvaluationRecord, evaluate

__all__ = ["EvaluationRecord", "evaluate"]
