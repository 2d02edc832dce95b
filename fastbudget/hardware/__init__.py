"""The machine at hand: its CPU, its packages, the devices a run holds; tables of accelerators and prices."""

from .devices import Device, FigureSource, find_device, known_devices
from .environment import Environment, describe_environment
from .machine import cpu_features, cpu_name, usable_cpus
from .prices import Price, find_price, known_prices, known_providers, price_for, read_prices

__all__ = [
    "Device",
    "Environment",
    "FigureSource",
    "Price",
    "cpu_features",
    "cpu_name",
    "describe_environment",
    "find_device",
    "find_price",
    "known_devices",
    "known_prices",
    "known_providers",
    "price_for",
    "read_prices",
    "usable_cpus",
]
