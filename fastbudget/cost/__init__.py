"""What a model costs, known before it runs."""

from .step_count import StepCount, count_step

__all__ = ["StepCount", "count_step"]
