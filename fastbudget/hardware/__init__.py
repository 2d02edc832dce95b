"""The machine at hand: its CPU, its packages, the devices a run holds; and the table of accelerators."""

from .devices import Device, FigureSource, find_device, known_devices
from .environment import Environment, describe_environment
from .machine import cpu_features, cpu_name, usable_cpus

__all__ = [
    "Device",
    "Environment",
    "FigureSource",
    "cpu_features",
    "cpu_name",
    "describe_environment",
    "find_device",
    "known_devices",
    "usable_cpus",
]
