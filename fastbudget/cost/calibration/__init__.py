"""Micro-benchmarks of the machine at hand."""

from .measurement import calibrate

__all__ = ["calibrate"]
