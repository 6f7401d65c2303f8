"""Execution of sub-models on a small device: schedule, host memory, slots, streams, engine."""
