"""Owner's control of a running daemon: pauses, changed settings and the traffic allowance."""
