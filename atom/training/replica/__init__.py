"""One model on one machine: passes, steps, and the thread that runs them, without other peers."""
