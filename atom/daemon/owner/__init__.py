"""Owner's control of a running daemon: pauses, schedule, settings, allowance and metrics."""
