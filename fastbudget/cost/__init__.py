"""What a model costs before it is trained: operations, memory, time, communication and money."""

from .allocation_log import CATEGORIES, PHASES, AllocationLog
from .allocator_settings import AllocatorConfig
from .allocator_simulation import AllocatorReplay, simulate_allocator
from .estimation import Estimate, estimate
from .measured_memory import measure_step
from .memory_estimate import MemoryEstimate, MemoryTimeline, PeakTensor
from .operation_table import OperationTable
from .tracing import Trace, trace_step
from .transformer_config import known_presets, read_transformer
from .transformer_estimation import TransformerEstimate, estimate_transformer
from .transformer_memory import StageMemory, TransformerMemory
from .transformer_shape import TransformerShape

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
    "TransformerShape",
    "estimate",
    "estimate_transformer",
    "known_presets",
    "measure_step",
    "read_transformer",
    "simulate_allocator",
    "trace_step",
]
