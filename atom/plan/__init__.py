"""Plan a model on this machine's devices: measure, choose a cut, and estimate its needs."""
