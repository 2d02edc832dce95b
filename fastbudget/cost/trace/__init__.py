"""A step run on fake tensors: every operation happens, nothing is allocated, all is recorded."""
