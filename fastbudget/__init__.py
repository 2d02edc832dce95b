"""fastbudget: know what a model costs, train it inside a budget, evaluate it with certainty, export it verified.

Public names are imported when first used: ``import fastbudget`` itself loads neither torch nor onnx.
"""

from typing import TYPE_CHECKING

from .core.public_names import lazy_names

_SOURCES = {
    "Artifact": "inference",
    "Budget": "core",
    "BudgetGuard": "budget",
    "BudgetSpent": "core",
    "BudgetTooSmallError": "core",
    "Calibration": "cost",
    "Candidate": "cost",
    "CheckpointError": "core",
    "CheckpointStore": "checkpoint",
    "ClaimReport": "cost",
    "ComputeAllocation": "cost",
    "ConfigurationError": "core",
    "DataFileError": "core",
    "EvaluationRecord": "evaluation",
    "EvaluationStore": "store",
    "EvaluationStoreError": "core",
    "FastbudgetError": "core",
    "InferenceEstimate": "cost",
    "Interval": "core",
    "InvalidInputError": "core",
    "JobConditions": "cost",
    "JobCost": "cost",
    "LaunchConfig": "cost",
    "MissingExtraError": "core",
    "NonFiniteLossError": "core",
    "OutOfMemoryError": "core",
    "RankFailedError": "core",
    "Plan": "cost",
    "RunDirectoryError": "core",
    "SaveError": "core",
    "SharedBudget": "budget",
    "Trainer": "training",
    "TrainingJob": "cost",
    "TrainingResult": "training",
    "Tier": "evaluation",
    "TransformerEstimate": "cost",
    "Verdict": "evaluation",
    "calibrate": "cost",
    "check_claim": "cost",
    "checkpoint_interval": "core",
    "compare": "evaluation",
    "compare_many": "evaluation",
    "compute_optimal": "cost",
    "estimate": "cost",
    "estimate_inference": "cost",
    "estimate_transformer": "cost",
    "evaluate": "evaluation",
    "evaluation": "evaluation",
    "export": "inference",
    "job_cost": "cost",
    "load_artifact": "inference",
    "metrics": "metrics",
    "ops": "ops",
    "plan": "cost",
    "read_launch_config": "cost",
    "run": "workflow",
    "stats": "stats",
    "store": "store",
    "training": "training",
}

__all__ = sorted([*_SOURCES, "__version__"])

if TYPE_CHECKING:
    from . import evaluation as evaluation
    from . import metrics as metrics
    from . import ops as ops
    from . import stats as stats
    from . import store as store
    from . import training as training
    from .budget import BudgetGuard as BudgetGuard
    from .budget import SharedBudget as SharedBudget
    from .checkpoint import CheckpointStore as CheckpointStore
    from .core import Budget as Budget
    from .core import BudgetSpent as BudgetSpent
    from .core import BudgetTooSmallError as BudgetTooSmallError
    from .core import CheckpointError as CheckpointError
    from .core import ConfigurationError as ConfigurationError
    from .core import DataFileError as DataFileError
    from .core import EvaluationStoreError as EvaluationStoreError
    from .core import FastbudgetError as FastbudgetError
    from .core import Interval as Interval
    from .core import InvalidInputError as InvalidInputError
    from .core import MissingExtraError as MissingExtraError
    from .core import NonFiniteLossError as NonFiniteLossError
    from .core import OutOfMemoryError as OutOfMemoryError
    from .core import RankFailedError as RankFailedError
    from .core import RunDirectoryError as RunDirectoryError
    from .core import SaveError as SaveError
    from .core import checkpoint_interval as checkpoint_interval
    from .cost import Calibration as Calibration
    from .cost import Candidate as Candidate
    from .cost import ClaimReport as ClaimReport
    from .cost import ComputeAllocation as ComputeAllocation
    from .cost import InferenceEstimate as InferenceEstimate
    from .cost import JobConditions as JobConditions
    from .cost import JobCost as JobCost
    from .cost import LaunchConfig as LaunchConfig
    from .cost import Plan as Plan
    from .cost import TrainingJob as TrainingJob
    from .cost import TransformerEstimate as TransformerEstimate
    from .cost import calibrate as calibrate
    from .cost import check_claim as check_claim
    from .cost import compute_optimal as compute_optimal
    from .cost import estimate as estimate
    from .cost import estimate_inference as estimate_inference
    from .cost import estimate_transformer as estimate_transformer
    from .cost import job_cost as job_cost
    from .cost import plan as plan
    from .cost import read_launch_config as read_launch_config
    from .evaluation import EvaluationRecord as EvaluationRecord
    from .evaluation import Tier as Tier
    from .evaluation import Verdict as Verdict
    from .evaluation import compare as compare
    from .evaluation import compare_many as compare_many
    from .evaluation import evaluate as evaluate
    from .inference import Artifact as Artifact
    from .inference import export as export
    from .inference import load_artifact as load_artifact
    from .store import EvaluationStore as EvaluationStore
    from .training import Trainer as Trainer
    from .training import TrainingResult as TrainingResult
    from .workflow import run as run

    __version__: str
else:
    _find, __dir__ = lazy_names(__name__, globals(), _SOURCES)

    def __getattr__(name):
        if name == "__version__":
            from importlib.metadata import version

            return version("fastbudget")
        return _find(name)
