"""Durable, verified training state on disk. No pickle: loading never executes code."""

from .background_save import SaveHandle
from .checkpoint_store import Checkpoint, CheckpointStore
from .writing import DamagedCheckpointWarning

__all__ = ["Checkpoint", "CheckpointStore", "DamagedCheckpointWarning", "SaveHandle"]
