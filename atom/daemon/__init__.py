"""One peer as a process: its state directory, its life from start to goodbye, its control API."""
