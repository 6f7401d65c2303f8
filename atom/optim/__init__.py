"""Optimizer on the host: gradient accounting, clipping, learning rate, AdamW over flat arenas."""
