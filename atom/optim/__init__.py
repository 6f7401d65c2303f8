"""Host optimizer: gradient accounting, clipping, learning rate, AdamW over flat arenas."""
