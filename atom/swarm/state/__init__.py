"""Transfer of a run's state between peers: arenas, their pieces, donors, and the fetch."""
