"""The machine at hand: its CPU, its packages, the devices a run holds."""

from .environment import Environment, describe_environment
from .machine import cpu_features, cpu_name, usable_cpus

__all__ = ["Environment", "cpu_features", "cpu_name", "describe_environment", "usable_cpus"]
