"""`atom doctor`: checks of this machine, and of obstacles between it and a run."""
