"""What a training step costs: memory, time, communication and money, before it runs."""

from .allocator_settings import AllocatorConfig
from .allocator_simulation import AllocatorReplay, simulate_allocator
from .step_count import StepCount, count_step

__all__ = ["AllocatorConfig", "AllocatorReplay", "StepCount", "count_step", "simulate_allocator"]
