"""Certainty from samples: sequential tests that stop when decided, and intervals for measured values. No torch."""

from .bootstrap_intervals import bootstrap_counts, bootstrap_ratio
from .proportions import wilson_interval
from .sequential_test import SequentialPairedTest

__all__ = ["SequentialPairedTest", "bootstrap_counts", "bootstrap_ratio", "wilson_interval"]
