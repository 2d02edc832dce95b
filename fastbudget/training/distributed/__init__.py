"""Training on several ranks under torchrun: DDP, FSDP2, shared batches, one end for all."""

from .data_parallel import DataParallel
from .ranks import Ranks, find_ranks, own_part

__all__ = ["DataParallel", "Ranks", "find_ranks", "own_part"]
