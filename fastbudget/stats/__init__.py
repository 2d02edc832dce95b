"""Intervals for measured values. numpy only."""

from .bootstrap_intervals import bootstrap_counts, bootstrap_ratio
from .proportions import wilson_interval

__all__ = ["bootstrap_counts", "bootstrap_ratio", "wilson_interval"]
