"""Training inside a budget: the loop, its learning rate, its optimizers."""

from .batches import call_model, check_has_batches, num_samples
from .losses import resolve_loss
from .optimizers import OPTIMIZERS, build_optimizer
from .schedule import LearningRateSchedule
from .trainer import METRICS_FILE, Trainer, TrainingResult

__all__ = [
    "METRICS_FILE",
    "OPTIMIZERS",
    "LearningRateSchedule",
    "Trainer",
    "TrainingResult",
    "build_optimizer",
    "call_model",
    "check_has_batches",
    "num_samples",
    "resolve_loss",
]
