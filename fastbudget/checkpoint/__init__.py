"""Durable, verified training state on disk. No pickle: loading never executes code."""

from .checkpoint_store import Checkpoint, CheckpointStore, DamagedCheckpointWarning

__all__ = ["Checkpoint", "CheckpointStore", "DamagedCheckpointWarning"]
