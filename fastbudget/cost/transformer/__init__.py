"""Transformers from their configuration: parameters, operations and memory by formulas."""
