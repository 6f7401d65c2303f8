"""Costs of operations in bytes and kernels, observed on fake tensors without allocations."""
