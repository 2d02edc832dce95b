"""What a model costs before it is trained: operations, memory, time, communication and money."""

from .allocation_log import CATEGORIES, PHASES, AllocationLog
from .allocator_settings import AllocatorConfig
from .allocator_simulation import AllocatorReplay, simulate_allocator
from .estimation import Estimate, estimate
from .measured_memory import measure_step
from .memory_estimate import MemoryEstimate, MemoryTimeline, PeakTensor
from .operation_table import OperationTable
from .tracing import Trace, trace_step
from .transformer_estimation import TransformerEstimate, estimate_transformer
from .transformer_memory import StageMemory, TransformerMemory

__all__ = [
    "CATEGORIES",
    "PHASES",
    "AllocationLog",
    "AllocatorConfig",
    "AllocatorReplay",
    "Estimate",
    "MemoryEstimate",
    "MemoryTimeline",
    "OperationTable",
    "PeakTensor",
    "StageMemory",
    "Trace",
    "TransformerEstimate",
    "TransformerMemory",
    "estimate",
    "estimate_transformer",
    "measure_step",
    "simulate_allocator",
    "trace_step",
]
