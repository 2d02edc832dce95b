"""What a training step costs: memory, time, communication and money, before it runs."""

from .allocator_settings import AllocatorConfig
from .allocator_simulation import AllocatorReplay, simulate_allocator
from .step_count import StepCount, count_step
from .transformer_config import known_presets, read_transformer
from .transformer_estimation import TransformerEstimate, estimate_transformer
from .transformer_memory import StageMemory, TransformerMemory
from .transformer_shape import TransformerShape

__all__ = [
    "AllocatorConfig",
    "AllocatorReplay",
    "StageMemory",
    "StepCount",
    "TransformerEstimate",
    "TransformerMemory",
    "TransformerShape",
    "count_step",
    "estimate_transformer",
    "known_presets",
    "read_transformer",
    "simulate_allocator",
]
