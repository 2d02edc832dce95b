"""What a model costs before it is trained: operations, memory, time, communication and money."""

from .allocator.allocator_settings import AllocatorConfig
from .allocator.allocator_simulation import AllocatorReplay, simulate_allocator
from .batch_search import fewest
from .calibration.measurement import calibrate
from .claims.claim import Claim
from .claims.claim_checking import ClaimReport, check_claim
from .claims.findings import Finding
from .device_memory import MARGIN, on_device
from .estimation import Estimate, estimate
from .inference.inference_estimation import InferenceEstimate, estimate_inference
from .inference.replica_speed import BatchSpeed
from .job.job_accounting import JobCost, account_job
from .job.job_conditions import JobConditions
from .job.training_job import TrainingJob
from .job.whole_job import job_cost
from .memory_estimate import MemoryEstimate, MemoryTimeline, PeakTensor
from .module_time.module_step_time import ModuleStepTime
from .planner.candidates import Candidate
from .planner.launch_config import LaunchConfig
from .planner.launch_reading import read_launch_config
from .planner.planned import NearestMiss, Plan
from .planner.planning import plan
from .recompute_search import RecomputeChoice, smallest_recompute
from .runtime.calibration import Calibration
from .runtime.operation_times import OperationTimes
from .runtime.step_time import StepTime, estimate_step_time
from .trace.allocation_log import CATEGORIES, PHASES, AllocationLog
from .trace.layer_recompute import recomputed_layers, running_statistics
from .trace.measured_memory import measure_step
from .trace.model_blocks import find_blocks
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
    "MARGIN",
    "PHASES",
    "AllocationLog",
    "AllocatorConfig",
    "AllocatorReplay",
    "BatchSpeed",
    "Calibration",
    "Candidate",
    "Claim",
    "ClaimReport",
    "ComputeAllocation",
    "Estimate",
    "Finding",
    "InferenceEstimate",
    "JobConditions",
    "JobCost",
    "LaunchConfig",
    "MemoryEstimate",
    "MemoryTimeline",
    "ModuleStepTime",
    "NearestMiss",
    "OperationTable",
    "OperationTimes",
    "PeakTensor",
    "Plan",
    "RecomputeChoice",
    "StageMemory",
    "StepTime",
    "Trace",
    "TrainingJob",
    "TrainingLayout",
    "TransformerEstimate",
    "TransformerMemory",
    "TransformerShape",
    "account_job",
    "calibrate",
    "check_claim",
    "compute_optimal",
    "estimate",
    "estimate_inference",
    "estimate_step_time",
    "estimate_transformer",
    "fewest",
    "find_blocks",
    "job_cost",
    "known_presets",
    "measure_step",
    "on_device",
    "plan",
    "read_launch_config",
    "read_transformer",
    "recomputed_layers",
    "running_statistics",
    "simulate_allocator",
    "smallest_recompute",
    "trace_step",
]
