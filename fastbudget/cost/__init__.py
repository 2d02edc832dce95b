"""What a model costs before it is trained: operations and memory, from a trace of its training step."""

from .allocation_log import CATEGORIES, PHASES, AllocationLog
from .estimation import Estimate, estimate
from .measured_memory import measure_step
from .memory_estimate import MemoryEstimate, MemoryTimeline, PeakTensor
from .operation_table import OperationTable
from .tracing import Trace, trace_step

__all__ = [
    "CATEGORIES",
    "PHASES",
    "AllocationLog",
    "Estimate",
    "MemoryEstimate",
    "MemoryTimeline",
    "OperationTable",
    "PeakTensor",
    "Trace",
    "estimate",
    "measure_step",
    "trace_step",
]
