"""A run's state between peers: arenas, their chunks, who gives them and who fetches."""
