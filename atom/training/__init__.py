"""Rounds and the loop: the one place where the model's column and the swarm meet."""
