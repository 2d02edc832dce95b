"""Training inside a budget: the loop, its learning rate, its optimizers, its data."""

from .batches import call_model, check_has_batches, num_samples
from .data import (
    MemmapDataset,
    PaddingCollate,
    ResumableSampler,
    SampleIndex,
    SeededDataset,
    TokenBatches,
    TokenDataset,
    TokenLoader,
    make_loader,
)
from .distributed import DataParallel
from .early_stopping import EarlyStopping
from .fingerprints import data_fingerprint
from .generators import sample_generators
from .losses import count_targets, resolve_loss
from .metrics_log import METRICS_FILE
from .model_parallel import ModelParallel
from .optimizers import OPTIMIZERS, build_optimizer
from .progress import Progress
from .schedule import LearningRateSchedule
from .stages import Stage
from .trainer import Trainer
from .training_result import TrainingResult

__all__ = [
    "METRICS_FILE",
    "OPTIMIZERS",
    "DataParallel",
    "EarlyStopping",
    "LearningRateSchedule",
    "MemmapDataset",
    "ModelParallel",
    "PaddingCollate",
    "Progress",
    "ResumableSampler",
    "SampleIndex",
    "SeededDataset",
    "Stage",
    "TokenBatches",
    "TokenDataset",
    "TokenLoader",
    "Trainer",
    "TrainingResult",
    "build_optimizer",
    "call_model",
    "check_has_batches",
    "count_targets",
    "data_fingerprint",
    "make_loader",
    "num_samples",
    "resolve_loss",
    "sample_generators",
]
