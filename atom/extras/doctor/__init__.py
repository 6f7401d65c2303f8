"""`atom doctor`: what this box has, and what stands between it and a run."""
