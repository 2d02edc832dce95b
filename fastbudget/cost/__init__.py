"""What a model costs before it is trained: operations, memory, time, communication and money."""

from .allocation_log import CATEGORIES, PHASES, AllocationLog
from .allocator_settings import AllocatorConfig
from .allocator_simulation import AllocatorReplay, simulate_allocator
from .estimation import Estimate, estimate
from .measured_memory import measure_step
from .memory_estimate import MemoryEstimate, MemoryTimeline, PeakTensor
from .operation_table import OperationTable
from .tracing import Trace, trace_step

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
    "Trace",
    "estimate",
    "measure_step",
    "simulate_allocator",
    "trace_step",
]
