"""What a model costs before it is trained: operations, memory, time, communication and money."""

from .allocator.allocator_settings import AllocatorConfig
from .allocator.allocator_simulation import AllocatorReplay, simulate_allocator
from .estimation import Estimate, estimate
from .memory_estimate import MemoryEstimate, MemoryTimeline, PeakTensor
from .runtime.calibration import Calibration
from .runtime.step_time import StepTime, estimate_step_time
from .trace.allocation_log import CATEGORIES, PHASES, AllocationLog
from .trace.measured_memory import measure_step
from .trace.operation_table import OperationTable
from .trace.tracing import Trace, trace_step
from .transformer.compute_allocation import ComputeAllocation, compute_optimal
from .transformer.training_layout import TrainingLayout
from .transformer.transformer_config import known_presets, read_transformer
from .transformer.transformer_estimation import TransformerEstimate, estimate_transformer
from .transformer.transformer_memory import StageMemory, TransformerMemory
from .transformer.transformer_shape import TransformerShape

__all__ = [
    "CATEGORIES",
    "PHASES",
    "AllocationLog",
    "AllocatorConfig",
    "AllocatorReplay",
    "Calibration",
    "ComputeAllocation",
    "Estimate",
    "MemoryEstimate",
    "MemoryTimeline",
    "OperationTable",
    "PeakTensor",
    "StageMemory",
    "StepTime",
    "Trace",
    "TrainingLayout",
    "TransformerEstimate",
    "TransformerMemory",
    "TransformerShape",
    "compute_optimal",
    "estimate",
    "estimate_step_time",
    "estimate_transformer",
    "known_presets",
    "measure_step",
    "read_transformer",
    "simulate_allocator",
    "trace_step",
]
