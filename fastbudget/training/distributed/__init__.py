"""Training on several ranks under torchrun: DDP, FSDP2, shared batches, one end for all."""

from .data_parallel import DataParallel
from .launching import RESTART_VARIABLE, is_restarted, launch_ranks, report_result
from .rank_log import RankLog
from .rank_step import RankTrainingStep
from .ranks import Ranks, find_ranks

__all__ = [
    "RESTART_VARIABLE",
    "DataParallel",
    "RankLog",
    "RankTrainingStep",
    "Ranks",
    "find_ranks",
    "is_restarted",
    "launch_ranks",
    "report_result",
]
