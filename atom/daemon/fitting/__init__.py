"""Fit a run's model to this machine's devices: measure, choose a cut, predict, and build."""
