"""Micro-benchmarks of the machine at hand."""
