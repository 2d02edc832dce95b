"""What a training step costs: memory, time, communication and money, before it runs."""

from .allocator_settings import AllocatorConfig
from .allocator_simulation import AllocatorReplay, simulate_allocator

__all__ = ["AllocatorConfig", "AllocatorReplay", "simulate_allocator"]
