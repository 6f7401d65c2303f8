"""Models to train, in plain PyTorch, and their data; independent of the swarm."""
