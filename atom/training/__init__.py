"""Training rounds: the package that connects the model's replica with the swarm."""
