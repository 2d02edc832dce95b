"""Scoring a model on held-out data, with intervals."""

from .activation_cache import ActivationCache
from .alerts import Alert, find_alerts
from .comparison import compare
from .comparison_table import ComparisonRow, ComparisonTable
from .evaluated_files import evaluate_predictions, with_references
from .evaluation_cadence import Cadence
from .evaluation_log import CadenceDecision
from .evaluator import evaluate
from .example_data import HashedData
from .example_views import Examples, as_examples
from .flip_prediction import FlipRates
from .frozen_prefix import FrozenPrefix
from .multiple_comparison import compare_many
from .phases import PHASES, Phase, phase
from .prediction_files import Predictions, read_predictions
from .preprocessing import (
    ConsistencyReport,
    PreprocessingFingerprint,
    compare_preprocessing,
    preprocessing_fingerprint,
)
from .quality_checklist import CheckItem, Evidence, QualityChecklist
from .record_comparison import Generalization, compare_records
from .recorded import read_record
from .records import EvaluationProgress, EvaluationRecord, ExampleScores
from .suites import SuiteRecord, Task, evaluate_suite
from .tiers import TIERS, Tier
from .verdict import Verdict
from .weight_change import ChangeScore, change_score

__all__ = [
    "PHASES",
    "TIERS",
    "ActivationCache",
    "Alert",
    "Cadence",
    "CadenceDecision",
    "ChangeScore",
    "CheckItem",
    "ComparisonRow",
    "ComparisonTable",
    "ConsistencyReport",
    "EvaluationProgress",
    "EvaluationRecord",
    "Evidence",
    "ExampleScores",
    "Examples",
    "FlipRates",
    "FrozenPrefix",
    "Generalization",
    "HashedData",
    "Phase",
    "Predictions",
    "PreprocessingFingerprint",
    "QualityChecklist",
    "SuiteRecord",
    "Task",
    "Tier",
    "Verdict",
    "as_examples",
    "change_score",
    "compare",
    "compare_many",
    "compare_preprocessing",
    "compare_records",
    "evaluate",
    "evaluate_predictions",
    "evaluate_suite",
    "find_alerts",
    "phase",
    "preprocessing_fingerprint",
    "read_predictions",
    "read_record",
    "with_references",
]
