"""Costs of a graph: bytes, kernels and seconds of its calls, estimated or measured."""
